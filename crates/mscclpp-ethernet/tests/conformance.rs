//! Ethernet passes the suite that all transports pass: on the GPUs of this machine, if it has some, and simulated.

use std::process::Command;

use mscclpp_core::{
    Context, ContextBuilder, Device, Transport,
    conformance::{self, Devices, Setup},
};
use mscclpp_ethernet::Ethernet;
use mscclpp_test_support::child;

#[derive(Clone, Copy)]
struct OverEthernet {
    devices: Devices,
    checksums: bool,
}

impl Setup for OverEthernet {
    fn builder(&self) -> ContextBuilder {
        // Chunks that are small enough for the cases to go around many of them.
        let ethernet = Ethernet::builder().staging(16 << 10, 3).checksums(self.checksums).build();
        Context::builder().provider(ethernet).platform(self.devices.platform())
    }

    fn transport(&self) -> Transport {
        Transport::ETHERNET
    }

    fn devices(&self) -> [Device; 2] {
        self.devices.of_ends()
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

    fn second_process(&self) -> Option<Command> {
        Some(child::as_child(&[&self.devices.to_string(), &self.checksums.to_string()]))
    }
}

fn main() {
    // The second process of a case.
    if let Some(role) = child::role() {
        let devices = role[0].parse().expect("two devices");
        let checksums = role[1].parse().expect("a switch");
        return conformance::process::serve(&OverEthernet { devices, checksums });
    }
    let mut trials = Vec::new();
    for devices in Devices::all() {
        // Checksums are tested between two devices.
        let [a, b] = devices.of_ends();
        for checksums in if a == b { &[false][..] } else { &[false, true] } {
            let checked = if *checksums { "_with_checksums" } else { "" };
            let setup = OverEthernet { devices, checksums: *checksums };
            trials.extend(conformance::trials_on(devices, &format!("{devices}{checked}"), &setup));
        }
    }
    conformance::run(trials)
}
