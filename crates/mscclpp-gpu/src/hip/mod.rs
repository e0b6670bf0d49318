//! The HIP platform: AMD's GPUs, through the HIP runtime and hiprtc. It is compiled, and tested against a fake of the
//! runtime; it has not been run on a GPU. The log says so when a device is opened.
//!
//! 1. **Device memory is uncached** ([`memory`]), because kernels of other devices write to it while its own device's
//!    kernels run and read it. On AMD's GPUs, memory is coherent in this case only if it was made so.
//! 2. **The calling thread is left as it was.** Each call makes its device the thread's device and then restores the
//!    previous one ([`current`]). What a failed call leaves for `hipGetLastError` is removed ([`failure`]).
//! 3. **Captures of others are not disturbed.** As on CUDA, calls that are forbidden during a capture run with the
//!    thread's capture mode relaxed.
//! 4. **Failures in drop** are logged (target `mscclpp::gpu`) and never panic.
//! 5. **Dropping waits for no kernel.** A separate thread frees device memory ([`memory`]), modules are unloaded with
//!    the next load ([`module`]), and page-locked memory is kept ([`crate::driver::pinned`]). What launches need is
//!    kept until they are complete ([`crate::driver::in_use`]).

mod bookkeeping;
mod compiler;
mod current;
mod device;
mod event;
mod export;
mod failure;
mod graph;
mod memory;
mod module;
mod stream;

use std::{ffi::c_int, sync::Arc};

use mscclpp_gpu_sys::hip::Hip;
use parking_lot::Mutex;

use crate::{
    DevicePtr, Error, Platform, Result,
    backend::{DeviceBackend, PlatformBackend},
};
use device::Device;
use failure::{check, unavailable};

/// The devices opened so far. They live as long as the process.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// The entry in the table of platforms.
pub(crate) struct HipPlatform;

impl PlatformBackend for HipPlatform {
    fn device_count(&self) -> Result<usize> {
        device_count()
    }

    /// Opening a device again gives the same one.
    fn open(&self, id: usize) -> Result<Arc<dyn DeviceBackend>> {
        Ok(Arc::new(device(id)?))
    }

    fn current_device(&self) -> Result<usize> {
        let hip = runtime()?;
        let mut current = 0;
        // SAFETY: `current` is valid for the write.
        check(hip, unsafe { (hip.get_device)(&raw mut current) }, "hipGetDevice")?;
        Ok(usize::try_from(current).unwrap_or(0))
    }

    fn find(&self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        let hip = runtime()?;
        for id in 0..device_count()? {
            if device::uuid(hip, ordinal(id)?)? == *uuid {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// `None` for host memory and for what the runtime does not know.
    fn owner_of(&self, ptr: DevicePtr) -> Result<Option<usize>> {
        export::owner_of(runtime()?, ptr)
    }

    fn why_no_peer_access(&self) -> &'static str {
        "the HIP runtime reports no peer access between them; see `rocm-smi --showtopo`"
    }
}

fn device_count() -> Result<usize> {
    let hip = runtime()?;
    let mut count = 0;
    // SAFETY: `count` is valid for the write.
    let result = unsafe { (hip.get_device_count)(&raw mut count) };
    match usize::try_from(count) {
        _ if result.0 != 0 => Err(unavailable(hip, "hipGetDeviceCount", result)),
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::Unavailable {
            platform: Platform::Hip,
            reason: "the HIP runtime finds no device; see `rocminfo` and HIP_VISIBLE_DEVICES".to_owned(),
        }),
    }
}

/// The number of a device as HIP takes it.
fn ordinal(id: usize) -> Result<c_int> {
    c_int::try_from(id).map_err(|_| Error::InvalidArgument(format!("{id} is no device number")))
}

fn device(id: usize) -> Result<&'static Device> {
    let mut devices = DEVICES.lock();
    if let Some(device) = devices.iter().find(|device| device.id() == id) {
        return Ok(device);
    }
    let hip = runtime()?;
    if devices.is_empty() {
        tracing::warn!(
            target: "mscclpp::gpu", runtime = hip.path(),
            "the HIP platform has been compiled and tested without a GPU: no AMD GPU has run it; see docs/src/hip.md"
        );
    }
    let device: &'static Device = Box::leak(Box::new(Device::open(hip, id)?));
    devices.push(device);
    device.warm_up();
    Ok(device)
}

/// The HIP runtime, initialised.
fn runtime() -> Result<&'static Hip> {
    let hip = Hip::load()
        .map_err(|error| Error::Unavailable { platform: Platform::Hip, reason: error.to_string() })?;
    // SAFETY: 0 is the only flag there is.
    let result = unsafe { (hip.init)(0) };
    if result.0 == 0 { Ok(hip) } else { Err(unavailable(hip, "hipInit", result)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where there is a runtime the devices must be counted; where there is none, the error says what is missing.
    #[test]
    fn a_machine_without_rocm_gets_a_clean_error() {
        match device_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::Unavailable { platform: Platform::Hip, reason }) => {
                assert!(reason.contains("libamdhip64.so") || reason.contains("hipInit"), "{reason}");
                assert!(matches!(HipPlatform.open(0), Err(Error::Unavailable { .. })));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
