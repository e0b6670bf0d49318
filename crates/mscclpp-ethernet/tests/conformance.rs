//! Ethernet passes the suite that all transports pass: on the GPUs of this machine, if it has some, and simulated.

use std::process::ExitCode;

use mscclpp_conformance::{Devices, Setup, run};
use mscclpp_core::{Context, ContextBuilder, Transport};
use mscclpp_ethernet::Ethernet;

#[derive(Clone, Copy)]
struct OverEthernet {
    devices: Devices,
    checksums: bool,
}

impl Setup for OverEthernet {
    fn builder(&self) -> ContextBuilder {
        // Chunks that are small enough for the cases to go around many of them.
        let ethernet = Ethernet::builder().staging(16 << 10, 3).checksums(self.checksums).build();
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

    fn writes_from_local_memory(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    let setups = Devices::all().into_iter().flat_map(|devices| {
        // Checksums are tested between two devices.
        let kinds = if devices.is_one() { &[false][..] } else { &[false, true] };
        kinds.iter().map(move |&checksums| {
            let checked = if checksums { "_with_checksums" } else { "" };
            (format!("{devices}{checked}"), OverEthernet { devices, checksums })
        })
    });
    run(setups, [])
}
