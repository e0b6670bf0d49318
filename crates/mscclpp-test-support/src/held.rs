//! The resources of a process.

use std::fs;

/// Returns how many open descriptors, threads and mappings of shared memory of this library this process has.
#[must_use]
pub fn held() -> [usize; 3] {
    let entries = |path| fs::read_dir(path).expect("procfs").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    let mappings = maps.lines().filter(|line| line.contains("memfd:mscclpp")).count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), mappings]
}
