//! Finds the adapter that is closest to a GPU.

use std::{
    fs,
    path::{Path, PathBuf},
};

use mscclpp_gpu::Gpu;

/// Among devices whose places in the system's device tree are given, the index of the one whose path shares the longest
/// beginning with the GPU's. The first, if there are several; none if the system does not say where the GPU is, or if
/// there are no devices.
pub(crate) fn nearest(gpu: &Gpu, devices: &[Option<PathBuf>]) -> Option<usize> {
    let address = gpu.properties().pci_bus_id.as_ref()?.to_lowercase();
    let place = fs::canonicalize(Path::new("/sys/bus/pci/devices").join(address)).ok()?;
    nearest_to(&place, devices)
}

fn nearest_to(place: &Path, devices: &[Option<PathBuf>]) -> Option<usize> {
    let shared = |device: &Option<PathBuf>| {
        device.as_ref().map_or(0, |device| {
            device.components().zip(place.components()).take_while(|(a, b)| a == b).count()
        })
    };
    // The first of the best: `max_by_key` would give the last.
    (0..devices.len()).rev().max_by_key(|i| shared(&devices[*i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_in_common_decides() {
        let at = |path: &str| Some(PathBuf::from("/sys/devices").join(path));
        let gpu = at("pci0000:40/0000:40:01.0/0000:41:00.0/0000:43:00.0").unwrap();
        let devices = [
            at("pci0000:00/0000:00:01.0/0000:01:00.0"),
            at("pci0000:40/0000:40:02.0/0000:45:00.0"),
            at("pci0000:40/0000:40:01.0/0000:41:00.0/0000:44:00.0"),
            at("pci0000:40/0000:40:01.0/0000:41:00.0/0000:44:00.1"),
            None,
        ];
        assert_eq!(nearest_to(&gpu, &devices), Some(2));
        assert_eq!(nearest_to(&gpu, &devices[..2]), Some(1));
        assert_eq!(nearest_to(&gpu, &[None, None]), Some(0));
        assert_eq!(nearest_to(&gpu, &[]), None);
    }
}
