//! The CUDA platform, based on the driver API.
//!
//! A device is its primary context. It is retained when the device is first opened and, as in the CUDA runtime, kept until
//! the process ends: PyTorch and other threads may be using it, so it must not be destroyed. A thread that had no context
//! keeps this one, as with the CUDA runtime. What holds for all drivers is in [`crate::driver`].

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

#[cfg(feature = "test-support")]
pub(crate) use values::write_u64_by_copy;

type Device = crate::driver::device::Device<Driver>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Platform, backend::PlatformBackend, driver::platform::OfDriver};

    /// Where there is a driver the devices must open; where there is none, the error says what is missing.
    #[test]
    fn a_machine_without_a_driver_gets_a_clean_error() {
        let cuda = OfDriver::<Driver>::NEW;
        match cuda.device_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::Unavailable { platform: Platform::Cuda, reason }) => {
                assert!(reason.contains("libcuda.so.1") || reason.contains("cuInit"), "{reason}");
                assert!(matches!(cuda.current_device(), Err(Error::Unavailable { .. })));
                assert!(matches!(cuda.open(0), Err(Error::Unavailable { .. })));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
