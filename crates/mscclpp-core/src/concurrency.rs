//! What the blocks of a grid wait for each other with: the host twins of `concurrency_device.hpp`, which argues why they
//! are right (D1 to D5 there). Written over abstract words, as [`crate::protocol`] is.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use mscclpp_gpu::{DevicePtr, host::Backoff};

use crate::protocol::{SharedWord, StatusWords};

/// A barrier of blocks: the host twin of the header's `DeviceSyncer`, one word of device memory that starts as zero.
///
/// ```
/// use mscclpp_core::DeviceSyncer;
/// use mscclpp_gpu::host::HostBlock;
///
/// /// `__device__ mscclpp::DeviceSyncer syncer;` and a kernel all of whose blocks meet at it.
/// fn all_there(block: &HostBlock<'_>) -> bool {
///     // SAFETY: a variable of the module is as large as `DeviceSyncer` and lives as long as the launch.
///     let syncer: &DeviceSyncer = unsafe { DeviceSyncer::at(block.symbol("syncer")) };
///     syncer.sync(block.grid_dim()[0], -1)
/// }
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct DeviceSyncer<W = AtomicU64> {
    /// How many arrived in the low half, how many complete rounds were taken out of that in the high half.
    state: W,
}

/// What the ticket of an arrival says.
struct Arrival {
    folded: u32,
    goal: u32,
    last: bool,
}

impl DeviceSyncer {
    /// The one at `ptr`.
    ///
    /// # Safety
    /// It is 8 aligned bytes of device memory of the Host platform, zeroed before their first use, that live as long as
    /// the reference.
    #[must_use]
    pub unsafe fn at<'a>(ptr: DevicePtr) -> &'a Self {
        // SAFETY: the caller's promise; the type is one atomic word.
        unsafe { &*ptr.as_mut_ptr::<Self>() }
    }

    /// Waits until `n_blocks` blocks have called it, each once; the same number for all calls of a launch. What any of
    /// them did before, all see behind it. It can be used again at once.
    ///
    /// Without bound if `max_spins` is negative, else for that many polls. Returns whether all came; if not, it must be
    /// zeroed before it is used again.
    pub fn sync(&self, n_blocks: u32, max_spins: i64) -> bool {
        let nobody = [const { AtomicU32::new(0) }; 4];
        let mut backoff = Backoff::new();
        self.sync_with(n_blocks, max_spins, &StatusWords::of(&nobody), || backoff.wait())
    }

    /// As [`Self::sync`], but an abort that reaches `status`, a handle's, ends it too.
    ///
    /// # Safety
    /// The handle must be one of a live semaphore of the Host platform.
    pub unsafe fn sync_or_abort(&self, n_blocks: u32, max_spins: i64, status: NonNull<u32>) -> bool {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        let status = unsafe { StatusWords::at(status.as_ptr()) };
        self.sync_with(n_blocks, max_spins, &status, || backoff.wait())
    }

    /// Half of the barrier: arrives and waits for nobody. Returns true for the last of `n_blocks`, which sees what the
    /// others did before. A block may use it again only when it knows that the last one has come.
    pub fn arrive(&self, n_blocks: u32) -> bool {
        self.arrive_once(n_blocks).last
    }
}

impl<W: SharedWord<Value = u64>> DeviceSyncer<W> {
    /// Over that word.
    #[doc(hidden)]
    pub fn over(state: W) -> Self {
        Self { state }
    }

    #[doc(hidden)]
    pub fn sync_with<W32: SharedWord<Value = u32>>(
        &self,
        n_blocks: u32,
        max_spins: i64,
        status: &StatusWords<'_, W32>,
        backoff: impl FnMut(),
    ) -> bool {
        let Arrival { folded, goal, last } = self.arrive_once(n_blocks);
        let complete = || {
            let now = self.state.load(Ordering::Acquire);
            let folds = ((now >> 32) as u32).wrapping_sub(folded);
            (folds.wrapping_mul(n_blocks).wrapping_add(now as u32) >= goal).then_some(())
        };
        last || status.poll_until(complete, max_spins, backoff).is_some()
    }

    fn arrive_once(&self, n_blocks: u32) -> Arrival {
        let ticket = self.state.fetch_add(1, Ordering::AcqRel);
        let low = ticket as u32;
        let goal = if low < n_blocks { n_blocks } else { n_blocks.wrapping_mul(2) };
        let last = low.wrapping_add(1) == goal;
        if last {
            // Orders nothing: it only keeps the chain of read-modify-writes.
            self.state.fetch_add((1 << 32) - u64::from(n_blocks), Ordering::Relaxed);
        }
        Arrival { folded: (ticket >> 32) as u32, goal, last }
    }
}

/// A counting semaphore among the blocks of one device: the host twin of the header's `DeviceSemaphore`, one word of
/// device memory that starts as zero.
#[derive(Debug)]
#[repr(transparent)]
pub struct DeviceSemaphore<W = AtomicU32> {
    count: W,
}

impl DeviceSemaphore {
    /// The one at `ptr`.
    ///
    /// # Safety
    /// It is 4 aligned bytes of device memory of the Host platform, zeroed before their first use, that live as long as
    /// the reference.
    #[must_use]
    pub unsafe fn at<'a>(ptr: DevicePtr) -> &'a Self {
        // SAFETY: the caller's promise; the type is one atomic word.
        unsafe { &*ptr.as_mut_ptr::<Self>() }
    }

    /// Waits for a turn and takes it; who took it sees what those who gave one back had done before. Without bound if
    /// `max_spins` is negative, else for that many polls. Returns whether it got one.
    pub fn acquire(&self, max_spins: i64) -> bool {
        let nobody = [const { AtomicU32::new(0) }; 4];
        let mut backoff = Backoff::new();
        self.acquire_with(max_spins, &StatusWords::of(&nobody), || backoff.wait())
    }

    /// As [`Self::acquire`], but an abort that reaches `status`, a handle's, ends it too.
    ///
    /// # Safety
    /// The handle must be one of a live semaphore of the Host platform.
    pub unsafe fn acquire_or_abort(&self, max_spins: i64, status: NonNull<u32>) -> bool {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        let status = unsafe { StatusWords::at(status.as_ptr()) };
        self.acquire_with(max_spins, &status, || backoff.wait())
    }
}

impl<W: SharedWord<Value = u32>> DeviceSemaphore<W> {
    /// Over that word.
    #[doc(hidden)]
    pub fn over(count: W) -> Self {
        Self { count }
    }

    /// Sets how many turns there are, while nobody uses it.
    pub fn set(&self, count: u32) {
        self.count.store(count, Ordering::Release);
    }

    /// Gives a turn back.
    pub fn release(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }

    #[doc(hidden)]
    pub fn acquire_with<W32: SharedWord<Value = u32>>(
        &self,
        max_spins: i64,
        status: &StatusWords<'_, W32>,
        backoff: impl FnMut(),
    ) -> bool {
        status.poll_until(|| self.try_take().then_some(()), max_spins, backoff).is_some()
    }

    /// Repeats only when another took or gave back a turn meanwhile.
    fn try_take(&self) -> bool {
        let mut there = self.count.load(Ordering::Relaxed);
        while there != 0 {
            match self.count.compare_exchange(there, there - 1, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => there = now,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU64, thread};

    use super::*;

    #[test]
    fn blocks_meet_round_after_round() {
        const ROUNDS: u64 = 300;
        for n_blocks in [1, 2, 5] {
            // The high half is about to wrap.
            let syncer = DeviceSyncer::over(AtomicU64::new(u64::MAX << 40));
            let seen: Vec<AtomicU64> = (0..n_blocks).map(|_| AtomicU64::new(0)).collect();
            thread::scope(|scope| {
                for own in &seen {
                    scope.spawn(|| {
                        for round in 1..=ROUNDS {
                            own.store(round, Ordering::Relaxed);
                            assert!(syncer.sync(n_blocks, -1));
                            let all = seen.iter().map(|other| other.load(Ordering::Relaxed));
                            assert!(all.min() >= Some(round));
                        }
                    });
                }
            });
            assert_eq!(syncer.state.into_inner() as u32, 0, "all is folded");
        }
    }

    #[test]
    fn a_barrier_that_is_not_complete_runs_out_of_polls_or_is_aborted() {
        let syncer = DeviceSyncer::over(AtomicU64::new(0));
        assert!(!syncer.sync(2, 100));
        let mut status = [1u32, 0, 0, 0];
        let syncer = DeviceSyncer::over(AtomicU64::new(0));
        // SAFETY: four words of this thread's own, as in a handle's status.
        assert!(!unsafe { syncer.sync_or_abort(2, -1, NonNull::from(&mut status).cast()) });
        assert_eq!(status, [1, 0, 1, 0]);
    }

    #[test]
    fn the_last_to_arrive_is_told() {
        let syncer = DeviceSyncer::over(AtomicU64::new(0));
        for _ in 0..3 {
            assert_eq!([0; 4].map(|_: u8| syncer.arrive(4)), [false, false, false, true]);
        }
    }

    #[test]
    fn turns_are_as_many_as_were_set() {
        let semaphore = DeviceSemaphore::over(AtomicU32::new(0));
        assert!(!semaphore.acquire(10));
        semaphore.set(2);
        assert!(semaphore.acquire(1) && semaphore.acquire(-1) && !semaphore.acquire(10));
        semaphore.release();
        assert!(semaphore.acquire(1) && !semaphore.acquire(1));
    }
}
