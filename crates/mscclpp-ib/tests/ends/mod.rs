//! Two connected ends in one process, with words of host memory between them.

#![allow(dead_code, reason = "each test takes its part")]

pub(crate) use mscclpp_conformance::hosts::{End, Pair, Words};
use mscclpp_core::{Context, Device, EndpointConfig, IbConfig, IbMode, Transport};
use mscclpp_gpu::Platform;
use mscclpp_ib::InfiniBand;

pub(crate) fn end(transport: Transport, mode: IbMode) -> End {
    end_with(transport, mode, IbConfig::new())
}

pub(crate) fn end_with(transport: Transport, mode: IbMode, config: IbConfig) -> End {
    end_over(InfiniBand::builder().mode(mode).build(), transport, config)
}

/// Makes an end with a provider of the test's own.
pub(crate) fn end_over(infiniband: InfiniBand, transport: Transport, config: IbConfig) -> End {
    let context = Context::builder().provider(infiniband).platform(Platform::Sim).build();
    End::open(context, EndpointConfig::new(transport, Device::CPU).ib(config))
}

pub(crate) fn pair(mode: IbMode) -> Pair {
    Pair::of(end(Transport::IB0, mode), end(Transport::IB1, mode))
}
