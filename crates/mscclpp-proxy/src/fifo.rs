//! The FIFO in memory: the places of its words, and the proxy's end of it.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use mscclpp_gpu::{DeviceBuffer, DevicePtr, Gpu, KernelObject, Owner, PinnedBuffer, fork::Origin};

use crate::{
    Error, FifoHandle, FifoPosition, ProxyTrigger, Result,
    protocol::{POISONED, Ring},
};

/// The bytes of a trigger.
const TRIGGER: u64 = 16;
/// The bytes of a line. Words with different writers are on different lines.
const LINE: u64 = 128;

/// Triggers on their way from device threads to the thread of a proxy.
///
/// Any number of device threads push ([`FifoHandle`]). This object is the only consumer: its owner polls and pops. All
/// others use the FIFO's [`FifoShared`]. While the FIFO is full, pushes wait.
///
/// ```
/// # use mscclpp_gpu::Platform;
/// # use mscclpp_proxy::Fifo;
///
/// let mut fifo = Fifo::new(&Platform::Sim.gpu(0)?, 512)?;
/// let handle = fifo.device_handle(); // goes to kernels
/// assert_eq!((handle.size, fifo.poll()), (512, None));
/// # Ok::<(), mscclpp_proxy::Error>(())
/// ```
pub struct Fifo {
    shared: Arc<FifoShared>,
    /// The number of triggers that have been popped; the tail in pinned memory is a copy of it for the device.
    position: u64,
}

/// The part of a [`Fifo`] that others may use.
pub struct FifoShared {
    memories: Arc<Memories>,
}

/// Keeps the memories of a FIFO alive. Through a FIFO, kernels wait for the proxy and for no peer.
struct Memories {
    /// The triggers, the tail and the status. Each begins on a new line.
    pinned: PinnedBuffer,
    /// The head, the cached tail, and the word that says whether a thread looks at the tail. Each has its own line.
    device: DeviceBuffer,
    size: u64,
    /// The process that made the FIFO. In a forked child, the memories are not touched: their pages are the parent's,
    /// or do not exist.
    origin: Origin,
    /// The reason why the FIFO was aborted, if one was given.
    failure: OnceLock<Error>,
}

/// The status words in which waits of kernels report how they ended.
const TIMED_OUT: u64 = 1;
const ABORTED: u64 = 2;

impl KernelObject for Memories {
    fn peers(&self) -> Vec<String> {
        self.has_waiting()
            .then(|| format!("a proxy of {} to take what they pushed", self.device.gpu()))
            .into_iter()
            .collect()
    }

    fn may_have_failed(&self) -> bool {
        [TIMED_OUT, ABORTED].into_iter().any(|word| self.status(word).load(Ordering::Relaxed) != 0)
    }

    /// Reports, once, the waits that failed since the last call.
    fn check(&self) -> mscclpp_gpu::Result<()> {
        // The kernels are complete, so all their reports are here. The abort request that they have seen is seen
        // here, too, and with it the reason.
        self.status(0).load(Ordering::Acquire);
        let said = |word| self.status(word).swap(0, Ordering::Relaxed) != 0;
        let gpu = self.device.gpu().to_string();
        match (said(ABORTED), said(TIMED_OUT)) {
            (true, _) => {
                let failure = self.failure.get().cloned();
                Err(failure.unwrap_or(Error::FifoAborted { gpu }).of_a_wait())
            }
            (false, true) => Err(Error::FifoWaitTimedOut { gpu }.of_a_wait()),
            (false, false) => Ok(()),
        }
    }
}

impl Fifo {
    /// The number of triggers that a FIFO holds by default.
    pub const DEFAULT_SIZE: u64 = 512;
    /// The largest size of a FIFO, in triggers.
    pub const MAX_SIZE: u64 = 4096;

    /// Makes an empty FIFO with room for `size` triggers, for kernels of `gpu`.
    ///
    /// # Errors
    /// [`Error::FifoSize`] if `size` is not a power of two from 2 to [`Fifo::MAX_SIZE`]; [`Error::Gpu`] if memory is
    /// short, with a hint to `ulimit -l` if that is the cause.
    pub fn new(gpu: &Gpu, size: u64) -> Result<Self> {
        if !size.is_power_of_two() || !(2..=Self::MAX_SIZE).contains(&size) {
            return Err(Error::FifoSize { size });
        }
        let pinned = gpu.allocate_pinned((TRIGGER * size).next_multiple_of(LINE) + 2 * LINE)?;
        // The host works at the addresses that kernels get.
        let host = DevicePtr::from_ptr(pinned.word(0)?.as_ptr());
        if host != pinned.ptr() || !host.0.is_multiple_of(LINE) {
            return Err(Error::InvalidArgument(format!(
                "{gpu} has pinned memory at {:?} which the host has at {host:?}; a FIFO needs one address, a multiple \
                 of {LINE}",
                pinned.ptr()
            )));
        }
        let device = gpu.allocate(3 * LINE)?;
        let memories =
            Arc::new(Memories { pinned, device, size, origin: Origin::here(), failure: OnceLock::new() });
        Ok(Self { shared: Arc::new(FifoShared { memories }), position: 0 })
    }

    /// The part for everyone but the consumer: the handle for kernels, the position, and how to end waits.
    #[must_use]
    pub fn shared(&self) -> &Arc<FifoShared> {
        &self.shared
    }

    /// The position of the trigger that [`Fifo::poll`] looks for, which is the number of triggers popped so far.
    #[must_use]
    pub fn tail(&self) -> FifoPosition {
        FifoPosition::from_raw(self.position)
    }

    /// Returns the next trigger, if there is one. Everything that the pushing thread wrote before is then visible.
    /// Does not block. Returns `None` in a forked child.
    #[must_use]
    pub fn poll(&mut self) -> Option<ProxyTrigger> {
        self.memories.ring()?.front(self.position).map(ProxyTrigger::from_words)
    }

    /// Takes the trigger that [`Fifo::poll`] returned, which makes room for a new one. Does not block. Does
    /// nothing in a forked child.
    pub fn pop(&mut self) {
        let Some(ring) = self.shared.memories.ring() else { return };
        ring.pop(self.position);
        self.position += 1;
    }

    /// Checks that triggers can still come. They cannot if the push at the position polled next has given up.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if that push has given up.
    pub fn check(&mut self) -> Result<()> {
        // In a forked child, this is an error.
        self.memories.pinned.word(0)?;
        // The release of this word comes after whatever was pushed below the hole, so that a look at the slot after
        // this load decides whether the hole is here.
        if self.status(3).load(Ordering::Acquire) == POISONED && self.poll().is_none() {
            return Err(Error::Poisoned { position: self.tail() });
        }
        Ok(())
    }

    /// Whether a trigger after the next one has already been pushed, so that the next one is about to come.
    #[doc(hidden)]
    pub fn is_pushed_beyond(&mut self) -> bool {
        let (ring, tail) = (self.memories.ring(), self.position);
        ring.is_some_and(|ring| (tail + 1..tail + self.size()).any(|position| ring.front(position).is_some()))
    }
}

impl Deref for Fifo {
    type Target = FifoShared;
    fn deref(&self) -> &FifoShared {
        &self.shared
    }
}

impl FifoShared {
    /// The number of triggers that the FIFO can hold.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.memories.size
    }

    pub(crate) fn owner(&self) -> Owner {
        self.memories.clone()
    }

    /// The position of the trigger that is popped next, which is the number of triggers popped so far. Does not
    /// block. In a forked child, 0.
    #[must_use]
    pub fn tail(&self) -> FifoPosition {
        self.memories.tail()
    }

    /// The handle for kernels, as plain data. `self` must live until the kernels that use it are complete. As an
    /// argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> FifoHandle {
        let Memories { pinned, device, size, .. } = &*self.memories;
        FifoHandle {
            triggers: pinned.ptr().as_mut_ptr(),
            head: device.ptr().as_mut_ptr(),
            tail: self.memories.tail_word().as_mut_ptr(),
            tail_cache: device.ptr().add(LINE).as_mut_ptr(),
            status: self.memories.status_words().as_mut_ptr(),
            size: *size as u32,
            size_mask: *size as u32 - 1,
            size_shift: size.trailing_zeros(),
            reserved: 0,
        }
    }

    /// Ends waiting pushes and syncs, for good. Does not block. Does nothing in a forked child.
    pub fn abort(&self) {
        if !self.memories.origin.is_here() {
            return;
        }
        self.status(0).store(1, Ordering::Release);
    }

    /// Ends waiting pushes and syncs because of `failure`, which is reported to whoever waits for their kernels.
    pub(crate) fn abort_because(&self, failure: Error) {
        // The reason is set first, so that it is there for whoever sees the abort in the word. The first reason
        // stays.
        let _ = self.memories.failure.set(failure);
        self.abort();
    }

    /// Whether a trigger waits to be taken. While a proxy runs, the answer may be outdated at once.
    pub(crate) fn has_waiting(&self) -> bool {
        self.memories.has_waiting()
    }

    /// The address of the head, in device memory.
    pub(crate) fn head(&self) -> DevicePtr {
        self.memories.device.ptr()
    }

    fn status(&self, index: u64) -> &AtomicU32 {
        self.memories.status(index)
    }
}

impl Memories {
    fn tail(&self) -> FifoPosition {
        FifoPosition::from_raw(self.ring().map_or(0, |ring| ring.tail.load(Ordering::Acquire)))
    }

    fn has_waiting(&self) -> bool {
        self.ring().is_some_and(|ring| ring.front(self.tail().raw()).is_some())
    }

    fn tail_word(&self) -> DevicePtr {
        self.pinned.ptr().add((TRIGGER * self.size).next_multiple_of(LINE))
    }

    fn status_words(&self) -> DevicePtr {
        self.tail_word().add(LINE)
    }

    fn status(&self, index: u64) -> &AtomicU32 {
        // SAFETY: the words are inside `pinned`, which `self` keeps, and aligned (`new` has checked the start address
        // and that the host has the same address); everybody uses atomics on them.
        unsafe { AtomicU32::from_ptr(self.status_words().add(4 * index).as_mut_ptr()) }
    }

    /// Returns the proxy's end of the FIFO; `None` in a forked child.
    fn ring(&self) -> Option<Ring<'_, AtomicU64>> {
        // SAFETY: as for `status`; an `AtomicU64` has the layout of the word.
        self.origin.is_here().then(|| unsafe {
            Ring {
                slots: std::slice::from_raw_parts(self.pinned.ptr().as_mut_ptr(), self.size as usize),
                tail: AtomicU64::from_ptr(self.tail_word().as_mut_ptr()),
            }
        })
    }
}

impl fmt::Debug for Fifo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fifo").field(&*self.shared).finish()
    }
}

mscclpp_os::debug_fields!(FifoShared, |this| size: this.size(), tail: this.tail().raw(), ..);
