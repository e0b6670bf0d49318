//! A platform, for each driver.

use std::{ffi::c_int, sync::Arc};

use mscclpp_gpu_sys::{Code, Entry};

use super::{
    api::Api,
    device::{self, Device},
    export,
    failure::unavailable,
};
use crate::{
    DevicePtr, Error, Result,
    backend::{DeviceBackend, PlatformBackend},
};

/// The entry in the table of platforms.
pub(crate) struct OfDriver<D>(std::marker::PhantomData<D>);

impl<D> OfDriver<D> {
    pub(crate) const NEW: Self = Self(std::marker::PhantomData);
}

impl<D: Api> PlatformBackend for OfDriver<D> {
    fn device_count(&self) -> Result<usize> {
        device_count::<D>()
    }

    /// Opening a device again gives the same one.
    fn open(&self, id: usize) -> Result<Arc<dyn DeviceBackend>> {
        Ok(Arc::new(device::<D>(id)?))
    }

    fn current_device(&self) -> Result<usize> {
        driver::<D>()?.current_device()
    }

    fn find(&self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        let driver = driver::<D>()?;
        for id in 0..device_count::<D>()? {
            if device::uuid(driver, driver.device(id)?)? == *uuid {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// `None` for host memory and for what the driver does not know.
    fn owner_of(&self, ptr: DevicePtr) -> Result<Option<usize>> {
        export::owner_of(driver::<D>()?, ptr)
    }

    fn why_no_peer_access(&self) -> &'static str {
        D::WHY_NO_PEER_ACCESS
    }
}

pub(crate) fn device_count<D: Api>() -> Result<usize> {
    let driver = driver::<D>()?;
    let Entry(name, get_count) = driver.functions().get_device_count;
    let mut count = 0;
    // SAFETY: `count` is valid for the write.
    let result = unsafe { get_count(&raw mut count) };
    match usize::try_from(count) {
        _ if result != D::Code::SUCCESS => Err(unavailable(driver, name, result)),
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::Unavailable { platform: D::PLATFORM, reason: D::NO_DEVICE.to_owned() }),
    }
}

/// The number of a device as drivers take it.
pub(crate) fn ordinal(id: usize) -> Result<c_int> {
    c_int::try_from(id).map_err(|_| Error::invalid(format!("{id} is no device number")))
}

pub(super) fn device<D: Api>(id: usize) -> Result<&'static Device<D>> {
    let mut devices = D::process().devices.lock();
    if let Some(device) = devices.iter().find(|device| device.properties.id == id) {
        return Ok(device);
    }
    let device: &'static Device<D> = Box::leak(Box::new(Device::open(driver()?, id)?));
    devices.push(device);
    // What it drops may be users' objects, which may ask for devices.
    drop(devices);
    device.warm_up();
    Ok(device)
}

/// The driver, initialised.
///
/// It is initialised each time: that costs nothing once done, and in a process forked after it, it is what fails.
fn driver<D: Api>() -> Result<&'static D> {
    let driver =
        D::load().map_err(|error| Error::Unavailable { platform: D::PLATFORM, reason: error.to_string() })?;
    let Entry(name, init) = driver.functions().init;
    // SAFETY: 0 is the only flag there is.
    let result = unsafe { init(0) };
    if result == D::Code::SUCCESS { Ok(driver) } else { Err(unavailable(driver, name, result)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Where there is a driver the devices must be counted; where there is none, the error says what is missing.
    pub(crate) fn a_machine_without_it_gets_a_clean_error<D: Api>(library: &str, init: &str) {
        let platform = OfDriver::<D>::NEW;
        match platform.device_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::Unavailable { platform: named, reason }) => {
                assert_eq!(named, D::PLATFORM);
                assert!(reason.contains(library) || reason.contains(init), "{reason}");
                assert!(matches!(platform.current_device(), Err(Error::Unavailable { .. })));
                assert!(matches!(platform.open(0), Err(Error::Unavailable { .. })));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
