//! Limits of the process under test: little lockable memory, or one core.

use std::{fs, path::PathBuf};

use mscclpp::prelude::*;
use rustix::{
    process::{Pid, Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, CpuSet, capabilities, sched_getaffinity, sched_setaffinity, set_capabilities},
};

/// Limits this process, which has only one thread so far, to 64 KiB of locked memory, like `ulimit -l 64`.
pub(crate) fn lock_at_most_64_kib() {
    const LIMIT: usize = 64 << 10;
    let limit = Rlimit { current: Some(LIMIT as u64), maximum: Some(LIMIT as u64) };
    setrlimit(Resource::Memlock, limit).expect("a lower limit");
    assert_eq!(getrlimit(Resource::Memlock), limit);
    // The limit does not apply to processes with the capability to lock memory.
    let mut sets = capabilities(None).expect("capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    sets.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("one capability less");
    let mut bytes = vec![0u8; 2 * LIMIT];
    // SAFETY: the memory belongs to this function.
    unsafe { rustix::mm::mlock(bytes.as_mut_ptr().cast(), bytes.len()) }.expect_err("more than the limit");
}

/// Checks that objects with pinned memory can be made in such a process, or that the error says what to change.
pub(crate) fn assert_pinned_memory_or_advice(gpu: &Gpu) {
    // The FIFO of the service alone takes all the memory that may be locked.
    match ProxyService::builder(gpu).fifo_size(4096).build() {
        Ok(service) => service.start_proxy(true).and_then(|()| service.stop_proxy()).expect("a service"),
        Err(error) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
    }
    // The size exceeds all memory, and all address spaces. Pages of simulated devices are not locked.
    let error = gpu.allocate_pinned(1 << 50).expect_err("1 PiB").to_string();
    assert!(gpu.platform() == Platform::Sim || error.contains("ulimit -l"), "{error}");
}

/// Binds this process, which has only one thread so far, to one core, and returns the core's number.
pub(crate) fn run_on_one_core() -> usize {
    let allowed = sched_getaffinity(None).expect("the cores of this process");
    let core = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("a core");
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).expect("fewer cores");
    core
}

/// Checks that this process has proxies, none of which has left the core.
pub(crate) fn assert_proxies_are_on(core: usize) {
    let threads =
        fs::read_dir("/proc/self/task").expect("procfs").map(|entry| entry.expect("a thread").path());
    let is_proxy =
        |at: &PathBuf| fs::read_to_string(at.join("comm")).is_ok_and(|name| name.trim() == "mscclpp-proxy");
    let proxies: Vec<_> = threads.filter(is_proxy).collect();
    assert_ne!(proxies.len(), 0, "no proxies");
    for proxy in proxies {
        let id = proxy
            .file_name()
            .and_then(|id| id.to_str()?.parse().ok())
            .and_then(Pid::from_raw)
            .expect("a number");
        let cores = sched_getaffinity(Some(id)).expect("the cores of a proxy");
        assert!(cores.is_set(core) && cores.count() == 1, "{} cores", cores.count());
    }
}
