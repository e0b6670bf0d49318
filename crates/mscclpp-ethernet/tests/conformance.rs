//! Ethernet passes the suite that all transports pass: on the GPUs of this machine, if it has some, and simulated.

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
    /// A signal is stored by the receiving thread, and not by the device behind its copies.
    TokensOnHost,
}

impl Setup for OverEthernet {
    fn builder(&self) -> ContextBuilder {
        // Chunks that are small enough for the cases to go around many of them.
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

    fn maps_peer_memory(&self) -> bool {
        false
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
        // Other kinds are tested between two devices.
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
