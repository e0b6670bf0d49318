use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mscclpp_gpu::{KernelParam, host::Backoff};

use crate::protocol::{SemaphoreWords, StatusWords};

/// What kernels do with a semaphore between two devices: `MemoryDevice2DeviceSemaphoreDeviceHandle` in the headers.
///
/// Its methods are the host twins of the header's, for kernels of the Host platform; any number of threads may call
/// them at once. It holds no reference: the [`crate::DeviceToDeviceSemaphore`] must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DeviceToDeviceSemaphoreHandle {
    /// Local device memory, counts the peers' signals.
    pub inbound_token: *mut u64,
    /// Local device memory, counts the tokens that waits here have claimed.
    pub expected_inbound_token: *mut u64,
    /// The peer's `inbound_token`, as mapped here.
    pub remote_inbound_token: *mut u64,
    /// Null where atomics reach the peer's memory; else two local words: a lock, and the count of signals sent.
    pub outbound_lock: *mut u64,
    /// Pinned host memory, four words: abort request, a wait timed out, a wait saw the abort, a call was refused.
    pub status: *mut u32,
}

// SAFETY: five pointers, plain data, laid out as in the header (`tests/layout.rs` compares).
unsafe impl KernelParam for DeviceToDeviceSemaphoreHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations.
unsafe impl Send for DeviceToDeviceSemaphoreHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceToDeviceSemaphoreHandle {}

impl DeviceToDeviceSemaphoreHandle {
    /// # Safety
    /// The handle must be one of a live semaphore of the Host platform; so for all methods below.
    unsafe fn words(&self) -> SemaphoreWords<'_, AtomicU64, AtomicU32> {
        // SAFETY: the pointers of a live handle are aligned and stay valid, and everybody uses atomics on them.
        unsafe {
            let word = |p: *mut u64| AtomicU64::from_ptr(p);
            SemaphoreWords {
                inbound: word(self.inbound_token),
                inbound_by_link: None,
                expected: word(self.expected_inbound_token),
                remote_inbound: word(self.remote_inbound_token),
                outbound: (!self.outbound_lock.is_null())
                    .then(|| (word(self.outbound_lock), word(self.outbound_lock.add(1)))),
                status: StatusWords::at(self.status),
            }
        }
    }

    /// Signals the peer; whoever waits for it sees everything this thread did before. Does not block.
    ///
    /// # Safety
    /// The handle must be one of a live semaphore of the Host platform.
    pub unsafe fn signal(&self) {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        unsafe { self.words() }.signal(Ordering::Release, || backoff.wait());
    }

    /// Signals the peer without publishing anything: only the execution is ordered. Does not block.
    ///
    /// # Safety
    /// As [`Self::signal`].
    pub unsafe fn relaxed_signal(&self) {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        unsafe { self.words() }.signal(Ordering::Relaxed, || backoff.wait());
    }

    /// Takes a signal if there is one, as [`Self::wait`] does. Does not block.
    ///
    /// # Safety
    /// As [`Self::signal`].
    #[must_use]
    pub unsafe fn poll(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.words() }.poll(Ordering::Acquire)
    }

    /// Takes a signal, waiting for it: without bound if `max_spins` is negative, else for that many polls.
    ///
    /// Returns whether it was signalled. If not, the wait ran out of polls (it has consumed nothing and can be
    /// repeated) or was aborted from the host (so will all later ones); the host tells which.
    ///
    /// # Safety
    /// As [`Self::signal`].
    #[must_use]
    pub unsafe fn wait(&self, max_spins: i64) -> bool {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        unsafe { self.words() }.wait(Ordering::Acquire, max_spins, || backoff.wait())
    }

    /// As [`Self::wait`], but nothing the peer did before its signal is made visible.
    ///
    /// # Safety
    /// As [`Self::signal`].
    #[must_use]
    pub unsafe fn relaxed_wait(&self, max_spins: i64) -> bool {
        let mut backoff = Backoff::new();
        // SAFETY: the caller's promise.
        unsafe { self.words() }.wait(Ordering::Relaxed, max_spins, || backoff.wait())
    }
}

/// What kernels do with a channel that only synchronises: `BaseMemoryChannelDeviceHandle` in the headers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BaseMemoryChannelHandle {
    /// The semaphore it signals and waits on.
    pub semaphore: DeviceToDeviceSemaphoreHandle,
}

// SAFETY: one plain struct, laid out as in the header (`tests/layout.rs` compares).
unsafe impl KernelParam for BaseMemoryChannelHandle {}

impl std::ops::Deref for BaseMemoryChannelHandle {
    type Target = DeviceToDeviceSemaphoreHandle;
    fn deref(&self) -> &Self::Target {
        &self.semaphore
    }
}
