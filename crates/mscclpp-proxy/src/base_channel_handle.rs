//! The device handle of a channel that names memories with each put, laid out as in the CUDA headers, with host twins.
//!
//! # Which way an operation goes
//! A thread does a small put or a signal itself, *directly*, only when nothing of the connection is pending in the FIFO;
//! else it pushes a trigger. So of two operations of which one happens before the other, the later one never overtakes
//! the earlier: `docs/design/port-channel.md` goes through the cases.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use mscclpp_core::HostToDeviceSemaphoreHandle;
use mscclpp_gpu::{KernelParam, host::Backoff};

use crate::{
    FifoHandle, MemoryId, ProxyTrigger, SemaphoreId, TriggerKind,
    fifo_handle::status_words,
    protocol::{ProgressWords, StatusWords, TRIGGER_RANGE, wait_until},
};

/// What kernels do with a [`crate::BasePortChannel`]: `BasePortChannelDeviceHandle` in the headers.
///
/// Its methods are the host twins of the header's, for kernels of the Host platform; any number of threads may call
/// them at once. It holds no reference: the channel must outlive the kernels that use it.
///
/// What returns a bool says whether it was done. If not, the service has failed or was aborted, the connection has
/// failed, the bound of polls was reached, or an offset, size or id does not fit a trigger: the channel then is aborted, and
/// [`crate::ProxyService::health`] says why.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BasePortChannelHandle {
    /// Where this side waits for the peer's signals.
    pub semaphore: HostToDeviceSemaphoreHandle,
    /// Where triggers go.
    pub fifo: FifoHandle,
    /// Local device memory, four words of this connection and service: 1 + the highest position of a trigger; how many
    /// puts were done directly, their bytes, and how many signals.
    pub last_pushed: *mut u64,
    /// All triggers of this connection at positions below it are complete. Local device memory where the transport
    /// stores it by itself, else pinned host memory.
    pub completed: *mut u64,
    /// The peer's token for kernels, as mapped here; null where kernels do not reach it with atomics.
    pub direct_token: *mut u64,
    /// The semaphore's number in its service.
    pub semaphore_id: SemaphoreId,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<BasePortChannelHandle>() == 104, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for BasePortChannelHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations.
unsafe impl Send for BasePortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for BasePortChannelHandle {}

/// Words behind `last_pushed` that count what was done directly.
#[derive(Clone, Copy)]
pub(crate) enum DirectCount {
    Puts = 1,
    Bytes = 2,
    Signals = 3,
}

impl BasePortChannelHandle {
    /// Asks the proxy to copy `size` bytes from `src_offset` of memory `src` to `dst_offset` of the peer's memory `dst`.
    /// The source must keep its contents until a flush. Waits while the FIFO is full.
    ///
    /// # Safety
    /// The handle must be one of a live channel of the Host platform; so for all methods below.
    #[must_use]
    pub unsafe fn put(
        &self,
        dst: MemoryId,
        dst_offset: u64,
        src: MemoryId,
        src_offset: u64,
        size: u64,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.request(TriggerKind::DATA, (dst, dst_offset), (src, src_offset), size) }.is_some()
    }

    /// Signals the peer: whoever takes the signal sees what was put, by this thread or before it, on this connection,
    /// and what this thread did. Waits while the FIFO is full.
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn signal(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.may_signal_directly() {
                self.signal_directly();
                return true;
            }
            self.request(TriggerKind::FLAG, (0, 0), (0, 0), 0).is_some()
        }
    }

    /// [`Self::put`], then [`Self::signal`], in one trigger.
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn put_with_signal(
        &self,
        dst: MemoryId,
        dst_offset: u64,
        src: MemoryId,
        src_offset: u64,
        size: u64,
    ) -> bool {
        let kind = TriggerKind::DATA | TriggerKind::FLAG;
        // SAFETY: the caller's promise.
        unsafe { self.request(kind, (dst, dst_offset), (src, src_offset), size) }.is_some()
    }

    /// [`Self::put_with_signal`], then [`Self::flush`], in one trigger.
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn put_with_signal_and_flush(
        &self,
        dst: MemoryId,
        dst_offset: u64,
        src: MemoryId,
        src_offset: u64,
        size: u64,
        max_spins: i64,
    ) -> bool {
        let kind = TriggerKind::DATA | TriggerKind::FLAG | TriggerKind::SYNC;
        // SAFETY: the caller's promise.
        unsafe {
            let pushed = self.request(kind, (dst, dst_offset), (src, src_offset), size);
            pushed.is_some_and(|position| self.wait_for_completion(position, max_spins))
        }
    }

    /// Waits until everything that this thread, or one before it, put and signalled on this connection is complete at
    /// the peer, so that sources may be written again: without bound if `max_spins` is negative, else for that many
    /// polls. One that runs out of polls can be repeated.
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn flush(&self, max_spins: i64) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.progress().nothing_pending() {
                fence(Ordering::SeqCst);
                return true;
            }
            let pushed = self.request(TriggerKind::SYNC, (0, 0), (0, 0), 0);
            pushed.is_some_and(|position| self.wait_for_completion(position, max_spins))
        }
    }

    /// Takes a signal of the peer if there is one, as [`Self::wait`] does. Does not block.
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn poll(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.semaphore.poll() }
    }

    /// Takes a signal of the peer, waiting for it: see [`HostToDeviceSemaphoreHandle::wait`].
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn wait(&self, max_spins: i64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.semaphore.wait(max_spins) }
    }

    /// # Safety
    /// As [`Self::put`].
    pub(crate) unsafe fn progress(&self) -> ProgressWords<'_, AtomicU64> {
        // SAFETY: the pointers of a live handle are aligned and stay valid, and everybody uses atomics on them.
        unsafe {
            ProgressWords {
                last_pushed: AtomicU64::from_ptr(self.last_pushed),
                completed: AtomicU64::from_ptr(self.completed),
            }
        }
    }

    /// # Safety
    /// As [`Self::put`].
    unsafe fn status(&self) -> StatusWords<'_, AtomicU32> {
        // SAFETY: as for `progress`.
        unsafe { status_words(self.semaphore.status) }
    }

    /// Pushes a trigger and returns its position. Waits for room without a bound of polls: one that gave up would leave a
    /// hole in the FIFO. An abort of the semaphore or the FIFO ends that.
    ///
    /// # Safety
    /// As [`Self::put`].
    unsafe fn request(
        &self,
        kind: TriggerKind,
        dst: (MemoryId, u64),
        src: (MemoryId, u64),
        size: u64,
    ) -> Option<u64> {
        // SAFETY: the caller's promise.
        let (status, progress, fifo) = unsafe { (self.status(), self.progress(), self.fifo.words()) };
        let Ok(trigger) = ProxyTrigger::new(kind, dst, src, size, self.semaphore_id) else {
            status.refused.store(TRIGGER_RANGE, Ordering::Release);
            status.abort.store(1, Ordering::Release);
            return None;
        };
        let mut backoff = Backoff::new();
        let pushed = fifo.push(
            [trigger.fst, trigger.snd],
            -1,
            |position| progress.announce(position),
            || status.abort_requested(),
            || backoff.wait(),
        );
        pushed.map_err(|why| status.note(why)).ok()
    }

    /// # Safety
    /// As [`Self::put`].
    unsafe fn wait_for_completion(&self, position: u64, max_spins: i64) -> bool {
        // SAFETY: the caller's promise.
        let (status, progress, fifo) = unsafe { (self.status(), self.progress(), self.fifo.words().status) };
        let mut backoff = Backoff::new();
        let completed = wait_until(
            max_spins,
            || progress.is_complete(position + 1),
            || status.abort_requested() || fifo.abort_requested(),
            || backoff.wait(),
        );
        completed.map_err(|why| status.note(why)).is_ok()
    }

    /// # Safety
    /// As [`Self::put`].
    pub(crate) unsafe fn may_signal_directly(&self) -> bool {
        // SAFETY: the caller's promise.
        !self.direct_token.is_null() && unsafe { self.progress() }.nothing_pending()
    }

    /// # Safety
    /// As [`Self::put`]; the token is not null.
    pub(crate) unsafe fn signal_directly(&self) {
        // SAFETY: the token of a live channel, which everybody uses atomics on.
        unsafe { AtomicU64::from_ptr(self.direct_token) }.fetch_add(1, Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { self.count(DirectCount::Signals, 1) };
    }

    /// # Safety
    /// As [`Self::put`].
    pub(crate) unsafe fn count(&self, what: DirectCount, n: u64) {
        // SAFETY: `last_pushed` is the first of four words.
        unsafe { AtomicU64::from_ptr(self.last_pushed.add(what as usize)) }.fetch_add(n, Ordering::Relaxed);
    }
}
