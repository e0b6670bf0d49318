//! The suite of port channels over CUDA IPC and over Ethernet, on simulated devices.

#[path = "../../mscclpp-proxy/tests/suite/mod.rs"]
mod suite;

use std::sync::Arc;

use libtest_mimic::Arguments;
use mscclpp::{Context, CudaIpc, Ethernet, Transport};
use suite::Setup;

fn main() {
    let cuda_ipc = Setup {
        builder: Arc::new(|| Context::builder().provider(CudaIpc::new())),
        transport: Transport::CUDA_IPC,
        reach: [true, true],
        queue_size: None,
    };
    let ethernet = Setup {
        builder: Arc::new(|| Context::builder().provider(Ethernet::new())),
        transport: Transport::ETHERNET,
        reach: [false, false],
        queue_size: None,
    };
    let mut trials = suite::trials("cuda_ipc::", &cuda_ipc);
    trials.extend(suite::trials("ethernet::", &ethernet));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
