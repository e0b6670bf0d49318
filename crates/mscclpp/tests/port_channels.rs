//! The suite of port channels over CUDA IPC, on simulated devices.

#[path = "../../mscclpp-proxy/tests/suite/mod.rs"]
mod suite;

use std::sync::Arc;

use libtest_mimic::Arguments;
use mscclpp::{Context, CudaIpc, Transport};
use suite::Setup;

fn main() {
    let setup = Setup {
        builder: Arc::new(|| Context::builder().provider(CudaIpc::new())),
        transport: Transport::CUDA_IPC,
        reach: [true, true],
    };
    libtest_mimic::run(&Arguments::from_args(), suite::trials("", &setup)).exit();
}
