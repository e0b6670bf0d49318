//! A program that uses both libraries, with one set of declarations of CUDA.

use cudarc::driver::sys::CUdeviceptr;
use mscclpp::prelude::*;

fn main() {
    let ptr = DevicePtr(CUdeviceptr::from(0x1000_u64));
    let platform = Platform::detect();
    println!("mscclpp sees {platform:?}; {ptr:?} is a device pointer of cudarc");
    assert!(Context::new().transports().has(Transport::CUDA_IPC));
}
