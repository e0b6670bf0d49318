//! The CUDA platform, based on the driver API.
//!
//! 1. **Primary contexts.** A device is its primary context. It is retained when the device is first opened and, as in
//!    the CUDA runtime, kept until the process ends: PyTorch and other threads may be using it, so it must not be
//!    destroyed.
//! 2. **The calling thread is left as it was.** Each call makes the context current and then restores the previous one.
//!    A thread that had none keeps this one, as with the CUDA runtime ([`context`]).
//! 3. **Captures of others are not disturbed.** Calls that are forbidden during a capture run with the thread's capture
//!    mode relaxed. The library's own work runs on a separate non-blocking stream, which takes part in nobody's
//!    capture.
//! 4. **Failures in drop** are logged (target `mscclpp::gpu`) and never panic.
//! 5. **Dropping waits for no kernel.** In the driver, unloading a module and freeing page-locked memory wait, so both
//!    are put off ([`module`], [`crate::driver::pinned`]). What launches need is kept until they are complete
//!    ([`crate::driver::in_use`]).

mod bookkeeping;
mod context;
mod cubin;
mod device;
mod event;
mod export;
mod failure;
mod graph;
mod memory;
mod module;
mod pinned;
mod ptx;
mod slots;
mod source;
mod stream;
mod virtual_memory;

use std::sync::Arc;

use mscclpp_gpu_sys::cuda::Driver;
use parking_lot::Mutex;

#[cfg(feature = "test-support")]
use crate::backend::StreamBackend;
use crate::{
    DevicePtr, Error, Platform, Result,
    backend::{DeviceBackend, PlatformBackend},
};
use device::Device;
use failure::{check, unavailable};

/// The devices opened so far. They are part of the loaded driver and live as long (see 1 above).
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// The entry in the table of platforms.
pub(crate) struct Cuda;

impl PlatformBackend for Cuda {
    fn device_count(&self) -> Result<usize> {
        device_count()
    }

    /// Opening a device again gives the same one.
    fn open(&self, id: usize) -> Result<Arc<dyn DeviceBackend>> {
        Ok(Arc::new(device(id)?))
    }

    /// The device whose context is current in the calling thread, else 0.
    fn current_device(&self) -> Result<usize> {
        current_device()
    }

    fn find(&self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        let driver = driver()?;
        for id in 0..device_count()? {
            if device::uuid(driver, device::handle(driver, id)?)? == *uuid {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// `None` for host memory and for what the driver does not know.
    fn owner_of(&self, ptr: DevicePtr) -> Result<Option<usize>> {
        export::owner_of(driver()?, ptr)
    }

    fn why_no_peer_access(&self) -> &'static str {
        "the driver reports no peer access between them; see `nvidia-smi topo -p2p r`"
    }
}

fn device_count() -> Result<usize> {
    let driver = driver()?;
    let mut count = 0;
    // SAFETY: `count` is valid for the write.
    let result = unsafe { (driver.device_get_count)(&raw mut count) };
    match usize::try_from(count) {
        _ if result.0 != 0 => Err(unavailable(driver, "cuDeviceGetCount", result)),
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::Unavailable {
            platform: Platform::Cuda,
            reason: "the driver finds no device; see `nvidia-smi` and CUDA_VISIBLE_DEVICES".to_owned(),
        }),
    }
}

fn device(id: usize) -> Result<&'static Device> {
    let mut devices = DEVICES.lock();
    if let Some(device) = devices.iter().find(|device| device.id() == id) {
        return Ok(device);
    }
    let device: &'static Device = Box::leak(Box::new(Device::open(driver()?, id)?));
    devices.push(device);
    device.warm_up();
    Ok(device)
}

fn current_device() -> Result<usize> {
    let driver = driver()?;
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is valid for the write.
    check(driver, unsafe { (driver.ctx_get_current)(&raw mut context) }, "cuCtxGetCurrent")?;
    if context.is_null() {
        return Ok(0);
    }
    let mut current = 0;
    // SAFETY: `current` is valid for the write, and a context is current.
    check(driver, unsafe { (driver.ctx_get_device)(&raw mut current) }, "cuCtxGetDevice")?;
    for id in 0..device_count()? {
        if device::handle(driver, id)? == current {
            return Ok(id);
        }
    }
    Ok(0)
}

/// Writes a value in the way that serves devices without stream value writes.
///
/// # Safety
/// As [`crate::Stream::write_u64`]; the stream is not capturing.
#[cfg(feature = "test-support")]
pub(crate) unsafe fn write_u64_by_copy(stream: &dyn StreamBackend, dst: DevicePtr, value: u64) -> Result<()> {
    let stream = stream::CudaStream::of(stream)?;
    // SAFETY: the caller's promise.
    unsafe { stream.device().value_slots().write(stream, dst, value) }
}

/// The driver, initialised.
///
/// `cuInit` is called each time: it costs nothing once done, and in a process forked after it, it is what fails.
fn driver() -> Result<&'static Driver> {
    let driver = Driver::load()
        .map_err(|error| Error::Unavailable { platform: Platform::Cuda, reason: error.to_string() })?;
    // SAFETY: 0 is the only flag there is.
    let result = unsafe { (driver.init)(0) };
    if result.0 == 0 { Ok(driver) } else { Err(unavailable(driver, "cuInit", result)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is a driver the devices must open; where there is none, the error says what is missing.
    #[test]
    fn a_machine_without_a_driver_gets_a_clean_error() {
        match device_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::Unavailable { platform: Platform::Cuda, reason }) => {
                assert!(reason.contains("libcuda.so.1") || reason.contains("cuInit"), "{reason}");
                assert!(matches!(current_device(), Err(Error::Unavailable { .. })));
                assert!(matches!(Cuda.open(0), Err(Error::Unavailable { .. })));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
