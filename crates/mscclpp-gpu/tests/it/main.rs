//! Tests of devices, most of them simulated ones.

mod builtins;
mod current_device;
#[path = "../device/mod.rs"]
mod device;
mod graphs;
mod kept;
mod kernels;
mod memory;
mod overruns;
mod streams;

use mscclpp_gpu::{DeviceBuffer, KernelParam};

/// Returns all values of a buffer.
fn download<T: KernelParam + Default>(buffer: &DeviceBuffer) -> Vec<T> {
    let mut values = vec![T::default(); buffer.len() as usize / size_of::<T>()];
    buffer.read_params(0, &mut values).unwrap();
    values
}

fn words(buffer: &DeviceBuffer) -> Vec<u64> {
    download(buffer)
}
