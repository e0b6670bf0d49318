//! InfiniBand passes the suite that all transports pass, over the devices of this machine, with both kinds of signals.
//! `cargo xtask rdma-vm` provides devices if there are none.

use std::process::Command;

use libtest_mimic::Trial;
use mscclpp_core::{
    Context, ContextBuilder, Device, IbMode, Transport,
    conformance::{self, Devices, Setup},
};
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::child;

#[derive(Clone, Copy)]
struct OverInfiniBand {
    devices: Devices,
    mode: IbMode,
}

impl Setup for OverInfiniBand {
    fn builder(&self) -> ContextBuilder {
        let infiniband = InfiniBand::builder().mode(self.mode).build();
        Context::builder().provider(infiniband).platform(self.devices.platform())
    }

    fn transport(&self) -> Transport {
        Transport::IB0
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
        Some(child::as_child(&[&self.devices.to_string(), name(self.mode)]))
    }
}

const MODES: [IbMode; 2] = [IbMode::Host, IbMode::HostNoAtomic];

fn name(mode: IbMode) -> &'static str {
    if mode == IbMode::Host { "atomics" } else { "immediates" }
}

fn main() {
    // The second process of a case.
    if let Some(role) = child::role() {
        let devices = role[0].parse().expect("two devices");
        let mode = MODES.into_iter().find(|mode| name(*mode) == role[1]).expect("a mode");
        return conformance::process::serve(&OverInfiniBand { devices, mode });
    }
    let missing = InfiniBand::new().device_names().err();
    let mut trials: Vec<Trial> = Vec::new();
    for devices in Devices::all() {
        for mode in MODES {
            let of = conformance::trials_on(
                devices,
                &format!("{devices}_{}", name(mode)),
                &OverInfiniBand { devices, mode },
            );
            trials.extend(of.into_iter().map(|trial| match missing {
                Some(_) => trial.with_kind("needs an InfiniBand device").with_ignored_flag(true),
                None => trial,
            }));
        }
    }
    if let Some(reason) = missing {
        eprintln!("nothing can be tested: {reason}");
    }
    conformance::run(trials)
}
