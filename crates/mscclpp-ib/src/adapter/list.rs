//! Finds the devices and their order.

use std::{
    ffi::CStr,
    fs,
    path::{Path, PathBuf},
};

use mscclpp_verbs_sys::Verbs;

use super::{failed, last_errno};
use crate::error::Result;

/// A device that the library knows of. Not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdapterInfo {
    pub(crate) name: String,
    /// The path of the device in the system's device tree; `None` for a device in software, or if the system does not
    /// say.
    pub(crate) place: Option<PathBuf>,
}

/// Lists all devices, sorted by PCI address; those without one come last, sorted by name.
pub(crate) fn list(verbs: &'static Verbs) -> Result<Vec<AdapterInfo>> {
    let mut found = Vec::new();
    each_device(verbs, |name, _| {
        let place = fs::canonicalize(Path::new("/sys/class/infiniband").join(name).join("device")).ok();
        found.push(AdapterInfo { name: name.to_owned(), place });
        false
    })?;
    sort(&mut found);
    Ok(found)
}

fn sort(devices: &mut [AdapterInfo]) {
    devices.sort_by_key(|info| {
        let address = info.place.as_ref().and_then(|place| place.file_name()).map(ToOwned::to_owned);
        (address.is_none(), address, info.name.clone())
    });
}

/// Calls `visit` with each device until it returns true, and returns whether it did.
pub(super) fn each_device(
    verbs: &'static Verbs,
    mut visit: impl FnMut(&str, *mut mscclpp_verbs_sys::ibv_device) -> bool,
) -> Result<bool> {
    let mut count = 0;
    // SAFETY: the count is this function's; the list is given back below.
    let list = unsafe { (verbs.get_device_list)(&raw mut count) };
    if list.is_null() {
        return match last_errno() {
            // The kernel has no RDMA support loaded, so there is no device.
            libc::ENOSYS => Ok(false),
            errno => Err(failed("the verbs library", "ibv_get_device_list", errno)),
        };
    }
    let mut done = false;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, which are valid until it is given back.
        let device = unsafe { *list.add(i) };
        // SAFETY: the device is valid, and its name ends with a zero, inside the device.
        let name = unsafe { CStr::from_ptr((verbs.get_device_name)(device)) };
        done = visit(&name.to_string_lossy(), device);
        if done {
            break;
        }
    }
    // SAFETY: the list was made by the call above and is freed once. Devices that were opened stay valid.
    unsafe { (verbs.free_device_list)(list) };
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_in_the_order_of_their_addresses() {
        let info = |name: &str, place: Option<&str>| AdapterInfo {
            name: name.to_owned(),
            place: place.map(|place| PathBuf::from("/sys/devices/pci0000:00").join(place)),
        };
        let mut devices = [
            info("rxe1", None),
            info("mlx5_9", Some("0000:05:00.0")),
            info("mlx5_0", Some("0000:c5:00.0")),
            info("rxe0", None),
        ];
        sort(&mut devices);
        assert_eq!(devices.map(|info| info.name), ["mlx5_9", "mlx5_0", "rxe0", "rxe1"]);
    }
}
