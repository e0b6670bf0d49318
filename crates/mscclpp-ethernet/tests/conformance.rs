//! Runs the suite that all transports pass: on the GPUs of this node, if it has some, and on simulated devices.

use std::process::ExitCode;

use mscclpp_conformance::{Devices, Setup, run};
use mscclpp_core::{Context, ContextBuilder, Transport};
use mscclpp_ethernet::Ethernet;

#[derive(Clone, Copy)]
struct OverEthernet {
    devices: Devices,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    WithChecksums,
    /// The receiving thread stores tokens, instead of the device after its copies.
    TokensOnHost,
}

impl Setup for OverEthernet {
    fn builder(&self) -> ContextBuilder {
        // The chunks are so small that the cases use each of them many times.
        let ethernet =
            Ethernet::builder().staging(16 << 10, 3).checksums(self.kind == Kind::WithChecksums).build();
        Context::builder().provider(ethernet)
    }

    fn transport(&self) -> Transport {
        Transport::ETHERNET
    }

    fn devices(&self) -> Devices {
        self.devices
    }

    fn reaches_other_hosts(&self) -> bool {
        true
    }

    fn tokens_on_host(&self) -> bool {
        self.kind == Kind::TokensOnHost
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    let setups = Devices::all().into_iter().flat_map(|devices| {
        // The other kinds are tested between two devices.
        let kinds = if devices.is_one() { 1 } else { 3 };
        let kinds = [
            (Kind::Plain, ""),
            (Kind::WithChecksums, "_with_checksums"),
            (Kind::TokensOnHost, "_with_tokens_on_host"),
        ]
        .into_iter()
        .take(kinds);
        kinds.map(move |(kind, name)| (format!("{devices}{name}"), OverEthernet { devices, kind }))
    });
    run(setups, [])
}
