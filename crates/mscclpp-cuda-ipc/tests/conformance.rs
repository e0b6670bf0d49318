//! CUDA IPC passes the suite that all transports pass: on the GPUs of this machine, if it has some, and simulated.

use std::process::ExitCode;

use mscclpp_conformance::{Devices, Setup, run};
use mscclpp_core::{Context, ContextBuilder, Transport};
use mscclpp_cuda_ipc::CudaIpc;

#[derive(Clone, Copy)]
struct OverCudaIpc(Devices);

impl Setup for OverCudaIpc {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(CudaIpc::new())
    }

    fn transport(&self) -> Transport {
        Transport::CUDA_IPC
    }

    fn devices(&self) -> Devices {
        self.0
    }

    fn maps_peer_memory(&self) -> bool {
        true
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    run(Devices::all().into_iter().map(|devices| (devices.to_string(), OverCudaIpc(devices))), [])
}
