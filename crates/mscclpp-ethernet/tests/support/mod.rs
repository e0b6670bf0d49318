//! Words of host memory and connected CPU endpoints, which several tests of this crate use.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod cutter;
pub(crate) mod relay;

pub(crate) use mscclpp_conformance::hosts::{End, Pair, Words};
use mscclpp_core::{Context, Device, EndpointConfig, Transport};
use mscclpp_ethernet::{Ethernet, EthernetBuilder};
use mscclpp_gpu::Platform;

/// Makes a context with a provider of its own, as each process has.
pub(crate) fn context(ethernet: EthernetBuilder) -> Context {
    Context::builder().provider(ethernet.build()).platform(Platform::Sim).build()
}

pub(crate) fn end() -> End {
    end_with(Ethernet::builder())
}

pub(crate) fn end_with(ethernet: EthernetBuilder) -> End {
    End::open(context(ethernet), EndpointConfig::new(Transport::ETHERNET, Device::CPU))
}

pub(crate) fn pair() -> Pair {
    Pair::of(end(), end())
}

/// Hashes a number.
pub(crate) fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}
