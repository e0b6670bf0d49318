//! Models of a FIFO and a port channel in kernels, step by step as in the headers; each step names its function. The
//! proxy's end, `mscclpp_proxy::protocol::Ring`, is not modelled: the code itself is checked.

use std::sync::atomic::Ordering;

use mscclpp_core::protocol::StatusWords;
use mscclpp_proxy::protocol::{COMMIT_BIT, POISONED, Ring, SharedWord};

/// `FifoDeviceHandle` of fifo_device.hpp.
#[derive(Debug)]
pub(crate) struct FifoWords<'a, W64, W32> {
    /// The part that the proxy works on.
    pub(crate) ring: Ring<'a, W64>,
    /// The next position to be given out.
    pub(crate) head: &'a W64,
    /// The highest tail that was seen, faster to read than the tail itself.
    pub(crate) tail_cache: &'a W64,
    /// 1 while a thread looks at the tail; see invariant 6.
    pub(crate) looking: &'a W64,
    /// The status words of the FIFO.
    pub(crate) status: StatusWords<'a, W32>,
}

impl<W64: SharedWord<Value = u64>, W32: SharedWord<Value = u32>> FifoWords<'_, W64, W32> {
    /// `FifoDeviceHandle::push`, `reserve` and `commit`: pushes a trigger and returns its position. `announce` is
    /// called with the position before the proxy can see the trigger. Waits while the FIFO is full, as
    /// [`StatusWords::poll_until`] says. Returns `None` if it gave up. The FIFO cannot be used any more then, and its
    /// other pushes give up too.
    pub(crate) fn push(
        &self,
        trigger: [u64; 2],
        max_spins: i64,
        announce: impl FnOnce(u64),
        backoff: impl FnMut(),
    ) -> Option<u64> {
        let position = self.head.fetch_add(1, Ordering::Relaxed);
        announce(position);
        let room = || self.has_room(position).then_some(());
        if self.status.poll_until(room, max_spins, backoff).is_none() {
            // The header notes the hole before the reason. No model has a push that gives up, so none sees the order.
            self.status.refused.store(POISONED, Ordering::Release);
            self.status.abort.store(1, Ordering::Release);
            return None;
        }
        self.publish(position, trigger);
        Some(position)
    }

    /// The store of `FifoDeviceHandle::commit`, which the header's `releaseWhole` does at once, as two stores.
    fn publish(&self, position: u64, [first, second]: [u64; 2]) {
        let slot = self.ring.slot(position);
        slot[0].store(first, Ordering::Relaxed);
        slot[1].store(second & !COMMIT_BIT | self.ring.commit(position), Ordering::Release);
    }

    fn has_room(&self, position: u64) -> bool {
        self.look((position + 1).saturating_sub(self.ring.size()))
    }

    /// Whether the proxy is known to have taken the trigger of `position`. For threads that ask again and again, as
    /// it need not know what another thread is about to see; otherwise like [`Self::is_taken`].
    pub(crate) fn is_seen_taken(&self, position: u64) -> bool {
        self.look(position + 1)
    }

    /// Whether the proxy has taken the trigger of `position`.
    pub(crate) fn is_taken(&self, position: u64) -> bool {
        self.tail_cache.load(Ordering::Acquire) > position
            || self.ring.tail.load(Ordering::Acquire) > position
    }

    /// `FifoDeviceHandle::look`: whether the tail has reached `needed`, as far as the cache knows, or the tail itself
    /// if no other thread looks there.
    fn look(&self, needed: u64) -> bool {
        let cached = self.tail_cache.load(Ordering::Acquire);
        if cached >= needed {
            return true;
        }
        if self.looking.load(Ordering::Relaxed) != 0
            || self.looking.compare_exchange(0, 1, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let tail = self.ring.tail.load(Ordering::Acquire);
        self.raise_cache(cached, tail);
        self.looking.store(0, Ordering::Relaxed);
        tail >= needed
    }

    fn raise_cache(&self, mut cached: u64, tail: u64) {
        while cached < tail {
            match self.tail_cache.compare_exchange(cached, tail, Ordering::Release) {
                Ok(_) => return,
                Err(now) => cached = now,
            }
        }
    }
}

/// The progress of a connection's triggers: `lastPushed_` and `flushDonePos_` of port_channel_device.hpp.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgressWords<'a, W64> {
    /// 1 + the highest position of a trigger of this connection.
    pub(crate) last_pushed: &'a W64,
    /// All triggers of this connection at positions below this value are complete at the peer.
    pub(crate) completed: &'a W64,
}

impl<W64: SharedWord<Value = u64>> ProgressWords<'_, W64> {
    /// Notes the position of a push before the push is published, so that whoever learns of the push finds it
    /// pending.
    pub(crate) fn announce(&self, position: u64) {
        let mut last = self.last_pushed.load(Ordering::Relaxed);
        while last <= position {
            match self.last_pushed.compare_exchange(last, position + 1, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Whether every push that happened before this call is complete.
    ///
    /// `last_pushed` is at least as high as the position after each announced push. Both words only grow, so it does
    /// not matter which is read first. The acquire pairs with the store that follows the completion.
    pub(crate) fn nothing_pending(&self) -> bool {
        let pushed = self.last_pushed.load(Ordering::Relaxed);
        self.is_complete(pushed)
    }

    /// Whether the triggers below `position` are complete.
    pub(crate) fn is_complete(&self, position: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= position
    }
}
