//! The simulated platform: devices simulated on the CPU.
//!
//! It runs programs on a machine without a GPU, and it is the executable specification of the other platforms. It is
//! never chosen silently, and everything it makes says `sim`. It promises the following, to which the files of this
//! folder refer as invariants:
//!
//! 1. Device memory is a sealed memfd mapped shared, so that another process can map it and cannot shrink it.
//! 2. Memory that kernels of this or another process may be touching is accessed only with atomics.
//! 3. A stream is an ordered queue with one worker thread. All of an operation happens before all of the next one, and
//!    all of the last one before `synchronize` or `query` reports it.
//! 4. Up to 1024 blocks of a launch run at once, each on a thread of its own. So blocks may wait for each other, as on
//!    a GPU on which they all fit.
//! 5. A kernel that fails in one block ends its other blocks, and fails its stream but not its device. What was queued
//!    after it is skipped, and events recorded after it pass the error on to those that wait for them.
//! 6. A forked child can touch no device memory of its parent's, and is told why (`forked`, [`crate::fork`]).
//! 7. A kernel is compiled from its CUDA source (`compiler`), and its threads are coroutines (`block`).

mod abi;
mod block;
mod compiler;
mod device;
mod event;
mod folder;
mod forked;
mod initialisers;
mod launch;
mod library;
mod mapping;
mod memory;
mod module;
mod queue;
pub(crate) mod races;
mod ranges;
mod rewrite;
mod schedule;
mod stacks;
mod stream;
mod turns;

use std::sync::{Arc, OnceLock};

use crate::{
    DevicePtr, Result,
    backend::{DeviceBackend, PlatformBackend},
    env,
};
pub use compiler::{sim_compiler, store_for_sim};
use device::SimDevice;

/// The platform's entry in the table of platforms.
pub(crate) struct Sim;

impl PlatformBackend for Sim {
    fn device_count(&self) -> Result<usize> {
        devices().map(<[_]>::len)
    }

    fn open(&self, id: usize) -> Result<Arc<dyn DeviceBackend>> {
        let device: Arc<SimDevice> = Arc::clone(&devices()?[id]);
        Ok(device)
    }

    fn current_device(&self) -> Result<usize> {
        Ok(SimDevice::current())
    }

    fn find(&self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        Ok(devices()?.iter().position(|device| device.properties().uuid == *uuid))
    }

    /// Returns none if no device has been opened.
    fn owner_of(&self, ptr: DevicePtr) -> Result<Option<usize>> {
        Ok(DEVICES.get().and_then(|devices| devices.iter().position(|device| device.owns(ptr))))
    }

    fn why_no_peer_access(&self) -> &'static str {
        "MSCCLPP_SIM_PEER_ACCESS=none keeps simulated devices from each other's memory"
    }
}

/// The simulated driver. Like a real one it exists once per process, from its first use on, so that all handles of a
/// device are the same device. The environment is read at that first use.
static DEVICES: OnceLock<Vec<Arc<SimDevice>>> = OnceLock::new();

fn devices() -> Result<&'static [Arc<SimDevice>]> {
    if let Some(devices) = DEVICES.get() {
        return Ok(devices);
    }
    let (count, reach_peers) = (env::sim_devices()?, env::sim_peer_access()?);
    env::sim_races()?;
    if let Some(seed) = env::sim_schedule()? {
        tracing::info!(target: "mscclpp::gpu", seed, "kernels of simulated devices are scheduled by MSCCLPP_SIM_SCHEDULE");
    }
    Ok(DEVICES.get_or_init(|| SimDevice::all(count, reach_peers)))
}
