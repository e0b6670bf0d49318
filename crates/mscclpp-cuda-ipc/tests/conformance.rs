//! CUDA IPC passes the suite that all transports pass: on the GPUs of this machine, if it has some, and simulated.

use std::process::Command;

use mscclpp_core::{
    Context, ContextBuilder, Device, Transport,
    conformance::{self, Devices, Setup},
};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_test_support::child;

#[derive(Clone, Copy)]
struct OverCudaIpc {
    devices: Devices,
}

impl Setup for OverCudaIpc {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(CudaIpc::new()).platform(self.devices.platform())
    }

    fn transport(&self) -> Transport {
        Transport::CUDA_IPC
    }

    fn devices(&self) -> [Device; 2] {
        self.devices.of_ends()
    }

    fn maps_peer_memory(&self) -> bool {
        true
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }

    fn second_process(&self) -> Option<Command> {
        Some(child::as_child(&[&self.devices.to_string()]))
    }
}

fn main() {
    // The second process of a case.
    if let Some(role) = child::role() {
        let devices = role[0].parse().expect("two devices");
        return conformance::process::serve(&OverCudaIpc { devices });
    }
    let mut trials = Vec::new();
    for devices in Devices::all() {
        trials.extend(conformance::trials_on(devices, &devices.to_string(), &OverCudaIpc { devices }));
    }
    conformance::run(trials)
}
