//! The CUDA platform, based on the driver API.
//!
//! A device is its primary context. It is retained when the device is first opened and, as in the CUDA runtime, kept until
//! the process ends: PyTorch and other threads may be using it, so it must not be destroyed. A thread that had no context
//! keeps this one, as with the CUDA runtime. [`crate::driver`] has the rules that hold for all drivers.

mod api;
mod cubin;
mod export;
mod hint;
mod memory;
mod module;
mod ptx;
mod source;
mod values;
mod virtual_memory;

use mscclpp_gpu_sys::cuda::Driver;

type Device = crate::driver::device::Device<Driver>;

#[cfg(test)]
#[test]
fn a_machine_without_a_driver_gets_a_clean_error() {
    use crate::driver::platform::tests::a_machine_without_it_gets_a_clean_error;
    a_machine_without_it_gets_a_clean_error::<Driver>("libcuda.so.1", "cuInit");
}
