//! The room that the calls of an engine have on a device, and how many engines this process has there.

use std::collections::HashMap;

use mscclpp_core::ProcessId;
use mscclpp_gpu::{Gpu, Kernel, Platform};
use parking_lot::Mutex;

use super::Group;
use crate::{Error, Result};

static ON_DEVICES: Mutex<Option<HashMap<(Platform, usize), u32>>> = Mutex::new(None);

/// An engine's room on a device, counted among those of this process while it lives.
///
/// Calls of one engine run one after the other. Those of two, on two streams, need all their blocks on the device at once: if
/// only one call fits, and two ranks begin with different ones, both wait for ever. So all engines of a device are set up for
/// the same number of calls at once, and a call has no more blocks than fit that many times. Ranks of this process that share a
/// device make their calls there at once, too.
pub struct DeviceRoom {
    gpu: Gpu,
    calls_at_once: u32,
    engines: u32,
}

impl DeviceRoom {
    /// The room of one more engine on `gpu`, where `calls_at_once` calls are to run at the same time, or as many as a process
    /// of `group` has ranks on one device if these are more. All ranks of the group make this call. Blocks until they do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for none or more than 32 calls, on this rank alone: ranks that may give different numbers
    /// [agree](Group::agree) first. The errors of [`Group::all_gather`].
    pub fn new(group: &Group, gpu: &Gpu, calls_at_once: u32) -> Result<Self> {
        if !(1..=32).contains(&calls_at_once) {
            return Err(Error::InvalidArgument(format!("calls_at_once({calls_at_once}); give 1 to 32")));
        }
        let process = u128::from_le_bytes(ProcessId::current()?.to_bytes());
        let all = group.all_gather([process as u64, (process >> 64) as u64, gpu.id() as u64])?;
        let sharing = all.iter().map(|own| all.iter().filter(|other| *other == own).count() as u32).max();
        let calls_at_once = calls_at_once.max(sharing.unwrap_or(1));
        let mut devices = ON_DEVICES.lock();
        let engines = devices.get_or_insert_default().entry((gpu.platform(), gpu.id())).or_default();
        *engines += 1;
        Ok(Self { gpu: gpu.clone(), calls_at_once, engines: *engines })
    }

    /// How many calls have room at once.
    #[must_use]
    pub fn calls_at_once(&self) -> u32 {
        self.calls_at_once
    }

    /// How many engines this process had on the device when this one was set up, this one included. If they are more than the
    /// calls at once, they may wait for each other for ever, unless the program orders them.
    #[must_use]
    pub fn engines(&self) -> u32 {
        self.engines
    }

    /// The most blocks that a launch of `kernel` may have, with so many threads and so much dynamic shared memory each: alike on
    /// all ranks of `group`, which all make this call. Blocks until they do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on all ranks if a rank has no room for a block; [`Error::Gpu`] if the driver does not say it;
    /// the errors of [`Group::all_gather`].
    pub fn blocks(&self, group: &Group, kernel: &Kernel, threads: u32, shared_bytes: u32) -> Result<u32> {
        let fit = kernel.max_resident_blocks(threads, shared_bytes).map_err(Error::from);
        let fit = group.all_have("blocks of a kernel", fit)? / u64::from(self.calls_at_once);
        let least = group.all_gather([fit])?.into_iter().map(|[fit]| fit).min().unwrap_or(fit);
        match u32::try_from(least).unwrap_or(u32::MAX) {
            0 => Err(Error::InvalidArgument(format!(
                "a rank has no room for a block of {threads} threads and {shared_bytes} bytes of shared memory beside those of {} \
                 other calls; give blocks less, or set up all engines for fewer calls at once",
                self.calls_at_once - 1
            ))),
            blocks => Ok(blocks),
        }
    }
}

impl Drop for DeviceRoom {
    fn drop(&mut self) {
        let device = (self.gpu.platform(), self.gpu.id());
        if let Some(engines) = ON_DEVICES.lock().get_or_insert_default().get_mut(&device) {
            *engines -= 1;
        }
    }
}

mscclpp_os::debug_fields!(DeviceRoom, |this|
    gpu: this.gpu.to_string(), calls_at_once: this.calls_at_once, engines: this.engines
);

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use std::{sync::Arc, thread};

    use crate::{Communicator, Context, ContextExt, LocalBootstrap};

    use super::*;

    /// Runs `what` on each of some ranks, which are threads and have these devices.
    fn ranks(devices: &[usize], what: impl Fn(&Group, &Gpu) + Sync) {
        let bootstraps = LocalBootstrap::group(devices.len()).into_iter();
        thread::scope(|scope| {
            for (bootstrap, device) in bootstraps.zip(devices) {
                let what = &what;
                scope.spawn(move || {
                    let context = Context::on(Platform::Sim);
                    let comm = Communicator::with_context(Arc::new(bootstrap), context);
                    let gpu = comm.context().gpu(*device).expect("a simulated device");
                    what(&Group::meet(&comm, "rooms", 1, None, 5).expect("a group"), &gpu);
                });
            }
        });
    }

    #[test]
    fn those_that_live_are_counted() {
        ranks(&[7], |group, gpu| {
            let room = || DeviceRoom::new(group, gpu, 2).expect("a room");
            let first = room();
            assert_eq!(first.engines(), 1);
            let second = room();
            assert_eq!((second.engines(), second.calls_at_once()), (2, 2));
            drop(first);
            assert_eq!(room().engines(), 2);
            for wrong in [0, 33] {
                let error = DeviceRoom::new(group, gpu, wrong).expect_err("it cannot be").to_string();
                assert_eq!(error, format!("calls_at_once({wrong}); give 1 to 32"));
            }
        });
    }

    #[test]
    fn ranks_that_share_a_device_have_room_there_at_once() {
        ranks(&[6, 5, 5, 5], |group, gpu| {
            let rooms = [2, 4].map(|calls| DeviceRoom::new(group, gpu, calls).expect("a room"));
            assert_eq!(rooms.each_ref().map(DeviceRoom::calls_at_once), [3, 4]);
        });
    }
}
