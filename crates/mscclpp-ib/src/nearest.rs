//! Finds the adapters that are closest to a GPU.
//!
//! The system's device tree decides. Data between two devices goes up to the lowest bridge that both are behind, so
//! the longest common path is the shortest way, as behind one PCIe switch. Devices that share no bridge reach each
//! other through processors; of those, the ones on the nearer NUMA node are closer.

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
};

use mscclpp_gpu::Gpu;

/// Returns the indices of the devices that are closest to the GPU, ascending. `devices` holds their places in the
/// system's device tree. Returns all indices if the system does not say where the GPU is.
pub(crate) fn nearest(gpu: &Gpu, devices: &[Option<PathBuf>]) -> Vec<usize> {
    let address = gpu.properties().pci_bus_id.as_ref();
    nearest_in(Path::new("/sys"), address.map(String::as_str), devices)
}

/// Does the same with `sys` as the root of sysfs.
fn nearest_in(sys: &Path, address: Option<&str>, devices: &[Option<PathBuf>]) -> Vec<usize> {
    let place = address
        .and_then(|address| fs::canonicalize(sys.join("bus/pci/devices").join(address.to_lowercase())).ok());
    let Some(gpu) = place else { return (0..devices.len()).collect() };
    let closeness = |device: &Option<PathBuf>| {
        let Some(device) = device else { return (0, Reverse(UNKNOWN)) };
        let shared = device.components().zip(gpu.components()).take_while(|(a, b)| a == b).count();
        (shared, Reverse(distance(sys, &gpu, device)))
    };
    let all: Vec<_> = devices.iter().map(closeness).collect();
    let best = all.iter().max();
    (0..all.len()).filter(|n| Some(&all[*n]) == best).collect()
}

/// A distance larger than any that a system reports, which are at most 255.
const UNKNOWN: u32 = 1000;

/// Returns the distance between the NUMA nodes of two devices, in the system's measure: 10 is the same node.
fn distance(sys: &Path, a: &Path, b: &Path) -> u32 {
    let node = |device: &Path| -> Option<usize> {
        // The file holds -1 if the system does not know the node.
        fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
    };
    let known = || {
        let (a, b) = (node(a)?, node(b)?);
        let distances = sys.join(format!("devices/system/node/node{a}/distance"));
        let of_nodes = fs::read_to_string(distances).unwrap_or_default();
        let known = of_nodes.split_whitespace().nth(b).and_then(|distance| distance.parse().ok());
        // Without the table, another node is farther than the device's own.
        known.or(Some(if a == b { 10 } else { 255 }))
    };
    known().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs of two sockets: on each a GPU and an adapter behind one switch, and another adapter at a port of its own.
    struct Sys(tempfile::TempDir);

    const GPU: [&str; 2] = ["0000:43:00.0", "0000:c3:00.0"];

    impl Sys {
        fn new() -> Self {
            let sys = Self(tempfile::tempdir().expect("a folder"));
            for (node, (bus, root)) in [("4", "pci0000:40"), ("c", "pci0000:c0")].into_iter().enumerate() {
                let switch = format!("{root}/0000:{bus}0:01.0/0000:{bus}1:00.0");
                sys.device(&format!("{switch}/0000:{bus}3:00.0"), node);
                sys.device(&format!("{switch}/0000:{bus}4:00.0"), node);
                sys.device(&format!("{root}/0000:{bus}0:02.0/0000:{bus}5:00.0"), node);
                // This adapter is at a root of its own, as every device is on some machines.
                sys.device(&format!("pci0000:{bus}8/0000:{bus}9:00.0"), node);
                let folder = sys.0.path().join(format!("devices/system/node/node{node}"));
                fs::create_dir_all(&folder).expect("a folder");
                fs::write(folder.join("distance"), ["10 21\n", "21 10\n"][node]).expect("a file");
            }
            sys
        }

        fn device(&self, path: &str, node: usize) {
            let place = self.0.path().join("devices").join(path);
            fs::create_dir_all(&place).expect("a folder");
            fs::write(place.join("numa_node"), format!("{node}\n")).expect("a file");
            let links = self.0.path().join("bus/pci/devices");
            fs::create_dir_all(&links).expect("a folder");
            symlink(&place, links.join(place.file_name().expect("a name"))).expect("a link");
        }

        fn at(&self, address: &str) -> Option<PathBuf> {
            fs::canonicalize(self.0.path().join("bus/pci/devices").join(address)).ok()
        }

        fn nearest(&self, gpu: &str, adapters: &[&str]) -> Vec<usize> {
            let places: Vec<_> = adapters.iter().map(|address| self.at(address)).collect();
            nearest_in(self.0.path(), Some(gpu), &places)
        }
    }

    #[test]
    fn the_switch_in_common_decides() {
        let sys = Sys::new();
        let adapters = ["0000:44:00.0", "0000:45:00.0", "0000:c5:00.0", "0000:c4:00.0"];
        assert_eq!(sys.nearest(GPU[0], &adapters), [0]);
        assert_eq!(sys.nearest(GPU[1], &adapters), [3]);
        // The system writes addresses in lower case, and the driver in upper case.
        assert_eq!(sys.nearest(&GPU[1].to_uppercase(), &adapters), [3]);
        assert_eq!(sys.nearest(GPU[0], &adapters[1..]), [0]);
    }

    #[test]
    fn without_a_switch_the_numa_node_decides() {
        let sys = Sys::new();
        let adapters = ["0000:49:00.0", "0000:c9:00.0"];
        assert_eq!(sys.nearest(GPU[0], &adapters), [0]);
        assert_eq!(sys.nearest(GPU[1], &adapters), [1]);
        // Without a table of distances, the GPU's own node is nearer.
        fs::remove_dir_all(sys.0.path().join("devices/system")).expect("it is there");
        assert_eq!(sys.nearest(GPU[1], &adapters), [1]);
    }

    #[test]
    fn several_may_be_as_near() {
        let sys = Sys::new();
        assert_eq!(sys.nearest(GPU[0], &["0000:c9:00.0", "0000:44:00.0", "0000:44:00.0"]), [1, 2]);
        // Soft RoCE has no place in the device tree.
        assert_eq!(sys.nearest(GPU[0], &["rxe0", "rxe1"]), [0, 1]);
        assert_eq!(sys.nearest(GPU[0], &["rxe0", "0000:c4:00.0"]), [1]);
        assert_eq!(nearest_in(sys.0.path(), None, &[None, sys.at(GPU[0])]), [0, 1]);
        assert!(sys.nearest(GPU[0], &[]).is_empty());
    }
}
