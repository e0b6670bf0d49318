//! The HIP platform: AMD's GPUs, through the HIP runtime and hiprtc. It is compiled, and tested against a fake of the
//! runtime; it has not been run on a GPU. The log says so when a device is opened.
//!
//! 1. **Device memory is uncached** ([`memory`]), because kernels of other devices write to it while its own device's
//!    kernels run and read it. On AMD's GPUs, memory is coherent in this case only if it was made so. A separate thread
//!    frees it, as that waits for kernels.
//! 2. **The thread's last failed result.** HIP keeps it for `hipGetLastError`. Other code asks there about its own calls,
//!    so this library removes the results of its calls (`Api::forget`).
//!
//! [`crate::driver`] has the rules that hold for all drivers.

mod api;
mod memory;
mod module;

use mscclpp_gpu_sys::hip::Hip;

type Device = crate::driver::device::Device<Hip>;

#[cfg(test)]
#[test]
fn a_machine_without_rocm_gets_a_clean_error() {
    use crate::driver::platform::tests::a_machine_without_it_gets_a_clean_error;
    a_machine_without_it_gets_a_clean_error::<Hip>("libamdhip64.so", "hipInit");
}
