//! InfiniBand passes the suite that all transports pass, over the devices of this node, with both kinds of signals.
//! The description of the devices is tested too. `cargo xtask rdma-vm` provides devices if there are none.

mod describe;

use std::process::ExitCode;

use mscclpp_conformance::{Devices, Setup, run};
use mscclpp_core::{Context, ContextBuilder, IbMode, Transport};
use mscclpp_ib::InfiniBand;

#[derive(Clone, Copy)]
struct OverInfiniBand {
    devices: Devices,
    mode: IbMode,
    lacks: Option<&'static str>,
}

impl Setup for OverInfiniBand {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(InfiniBand::builder().mode(self.mode).build())
    }

    fn transport(&self) -> Transport {
        Transport::IB0
    }

    fn devices(&self) -> Devices {
        self.devices
    }

    fn reaches_other_hosts(&self) -> bool {
        true
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }

    fn lacks(&self) -> Option<&'static str> {
        self.lacks
    }
}

fn main() -> ExitCode {
    let missing = InfiniBand::new().device_names().err();
    let lacks = missing.as_ref().map(|_| "an InfiniBand device");
    if let Some(reason) = missing {
        eprintln!("nothing can be tested: {reason}");
    }
    let setups = Devices::all().into_iter().flat_map(|devices| {
        [("atomics", IbMode::Host), ("immediates", IbMode::HostNoAtomic)]
            .map(|(name, mode)| (format!("{devices}_{name}"), OverInfiniBand { devices, mode, lacks }))
    });
    run(setups, describe::trials())
}
