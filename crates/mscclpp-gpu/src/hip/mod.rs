//! The HIP platform: AMD's GPUs, through the HIP runtime and hiprtc. It is compiled, and tested against a fake of the
//! runtime; it has not been run on a GPU. The log says so when a device is opened.
//!
//! 1. **Device memory is uncached** ([`memory`]), because kernels of other devices write to it while its own device's
//!    kernels run and read it. On AMD's GPUs, memory is coherent in this case only if it was made so. A separate thread
//!    frees it, as that waits for kernels.
//! 2. **The thread's last failed result.** HIP keeps it for `hipGetLastError`. Other code asks there about its own calls,
//!    so this library removes the results of its calls (`Api::forget`).
//!
//! What holds for all drivers is in [`crate::driver`].

mod api;
mod compiler;
mod hint;
mod memory;
mod module;

use mscclpp_gpu_sys::hip::Hip;

type Device = crate::driver::device::Device<Hip>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Platform, backend::PlatformBackend, driver::platform::OfDriver};

    /// Where there is a runtime the devices must be counted; where there is none, the error says what is missing.
    #[test]
    fn a_machine_without_rocm_gets_a_clean_error() {
        let hip = OfDriver::<Hip>::NEW;
        match hip.device_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::Unavailable { platform: Platform::Hip, reason }) => {
                assert!(reason.contains("libamdhip64.so") || reason.contains("hipInit"), "{reason}");
                assert!(matches!(hip.open(0), Err(Error::Unavailable { .. })));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
