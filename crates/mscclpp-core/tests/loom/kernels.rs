//! Models of the device API, step by step as in the headers; each comment names the function that it models.
//!
//! Kernels are C++, which loom cannot run. The host's own code is not modelled: `mscclpp_core::protocol` itself is
//! checked.

use std::sync::atomic::Ordering;

use mscclpp_core::protocol::{SharedWord, StatusWords};

/// `DeviceSyncer` of concurrency_device.hpp, by its invariants D1 to D5.
pub(crate) struct DeviceSyncer<W> {
    /// The number of arrivals in the low half, and in the high half the number of complete rounds subtracted from it.
    state: W,
}

/// The parts of an arrival's ticket.
struct Arrival {
    folded: u32,
    goal: u32,
    last: bool,
}

impl<W: SharedWord<Value = u64>> DeviceSyncer<W> {
    pub(crate) fn over(state: W) -> Self {
        Self { state }
    }

    /// `DeviceSyncer::sync`, by the first thread of a block.
    pub(crate) fn sync<W32: SharedWord<Value = u32>>(
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

    /// `DeviceSyncer::arriveOnce`.
    fn arrive_once(&self, n_blocks: u32) -> Arrival {
        let ticket = self.state.fetch_add(1, Ordering::AcqRel);
        let low = ticket as u32;
        let goal = if low < n_blocks { n_blocks } else { n_blocks.wrapping_mul(2) };
        let last = low.wrapping_add(1) == goal;
        if last {
            // This addition orders nothing: it only continues the chain of read-modify-writes.
            self.state.fetch_add((1 << 32) - u64::from(n_blocks), Ordering::Relaxed);
        }
        Arrival { folded: (ticket >> 32) as u32, goal, last }
    }
}

/// `DeviceSemaphore` of concurrency_device.hpp.
pub(crate) struct DeviceSemaphore<W> {
    count: W,
}

impl<W: SharedWord<Value = u32>> DeviceSemaphore<W> {
    pub(crate) fn over(count: W) -> Self {
        Self { count }
    }

    /// `DeviceSemaphore::set`
    pub(crate) fn set(&self, count: u32) {
        self.count.store(count, Ordering::Release);
    }

    /// `DeviceSemaphore::release`
    pub(crate) fn release(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }

    /// `DeviceSemaphore::acquire`
    pub(crate) fn acquire<W32: SharedWord<Value = u32>>(
        &self,
        max_spins: i64,
        status: &StatusWords<'_, W32>,
        backoff: impl FnMut(),
    ) -> bool {
        status.poll_until(|| self.try_take().then_some(()), max_spins, backoff).is_some()
    }

    /// The loop of `DeviceSemaphore::acquire`. It repeats only if another block took or released a turn meanwhile.
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

/// A kernel's way to signal: `MemoryDevice2DeviceSemaphoreDeviceHandle::signal` and `relaxedSignal` of
/// semaphore_device.hpp.
pub(crate) struct Signals<'a, W64> {
    /// The peer's inbound token.
    pub(crate) remote_inbound: &'a W64,
    /// Lock and count of signals sent, if atomics do not reach the peer's memory.
    pub(crate) outbound: Option<(&'a W64, &'a W64)>,
}

impl<W64: SharedWord<Value = u64>> Signals<'_, W64> {
    /// Signals once. `order` is `Release` for a signal that publishes, `Relaxed` for one that does not.
    pub(crate) fn signal(&self, order: Ordering, mut backoff: impl FnMut()) {
        let Some((lock, count)) = self.outbound else {
            self.remote_inbound.fetch_add(1, order);
            return;
        };
        // The acquire pairs with the release of the unlock: counts, and the stores of them, follow each other. The
        // holder takes no other lock and waits for nothing, so this loop ends.
        while lock.compare_exchange(0, 1, Ordering::Acquire).is_err() {
            backoff();
        }
        let next = count.load(Ordering::Relaxed) + 1;
        count.store(next, Ordering::Relaxed);
        // Always a release: plain stores form no release sequence, so a wait that sees this value but missed that of
        // an earlier holder gets the earlier holder's data through the lock and this store.
        self.remote_inbound.store(next, Ordering::Release);
        lock.store(0, Ordering::Release);
    }
}

/// A packet in words of 8 bytes, as `store`, `load` and `carries` of packet_device.hpp store, load and check it.
///
/// 1. The unit that arrives whole is a word of 8 bytes. A flag in a word is valid for that word; for other words it
///    is valid only with ordering.
/// 2. LL8 and LL16: each word is 4 bytes of data and, above them, 4 bytes of flag. A word with the awaited flag has
///    that round's data in it, so stores and loads are relaxed and the two words of LL16 may come in any order.
/// 3. LL128: fifteen words of data, and the flag in the sixteenth. On GPUs, a warp stores the line at once, the line
///    arrives whole on links where LL128 is used at all, and a warp loads it at once. The model has no such access:
///    the flag is stored behind the data with release and loaded before it with acquire.
/// 4. Flags differ from round to round, and 0 is no flag. A packet is not overwritten before it was taken: the sender
///    of the next round learns that, for example, from the answer to this one.
pub(crate) trait PacketFormat {
    /// The number of words of a packet.
    const WORDS: usize;
    /// The data that a packet carries.
    type Payload: AsRef<[u8]> + AsMut<[u8]> + Copy;
    /// A payload of zeros.
    const ZEROS: Self::Payload;

    /// Fills `words` with `payload`. `flag` is not 0.
    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &Self::Payload, flag: u32);

    /// Returns the payload, if all of it has arrived with that flag.
    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<Self::Payload>;
}

pub(crate) enum LL8Packet {}
pub(crate) enum LL16Packet {}
pub(crate) enum LL128Packet {}

fn with_flag(data: [u8; 4], flag: u32) -> u64 {
    u64::from(flag) << 32 | u64::from(u32::from_le_bytes(data))
}

fn if_flagged(word: u64, flag: u32) -> Option<[u8; 4]> {
    ((word >> 32) as u32 == flag).then_some((word as u32).to_le_bytes())
}

impl PacketFormat for LL8Packet {
    const WORDS: usize = 1;
    type Payload = [u8; 4];
    const ZEROS: [u8; 4] = [0; 4];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 4], flag: u32) {
        words[0].store(with_flag(*payload, flag), Ordering::Relaxed);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 4]> {
        if_flagged(words[0].load(Ordering::Relaxed), flag)
    }
}

impl PacketFormat for LL16Packet {
    const WORDS: usize = 2;
    type Payload = [u8; 8];
    const ZEROS: [u8; 8] = [0; 8];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 8], flag: u32) {
        let [a, b, c, d, e, f, g, h] = *payload;
        words[0].store(with_flag([a, b, c, d], flag), Ordering::Relaxed);
        words[1].store(with_flag([e, f, g, h], flag), Ordering::Relaxed);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 8]> {
        let [a, b, c, d] = if_flagged(words[0].load(Ordering::Relaxed), flag)?;
        let [e, f, g, h] = if_flagged(words[1].load(Ordering::Relaxed), flag)?;
        Some([a, b, c, d, e, f, g, h])
    }
}

impl PacketFormat for LL128Packet {
    const WORDS: usize = 16;
    type Payload = [u8; 120];
    const ZEROS: [u8; 120] = [0; 120];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 120], flag: u32) {
        let (data, _) = payload.as_chunks();
        for (word, value) in words.iter().zip(data) {
            word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
        }
        words[15].store(flag.into(), Ordering::Release);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 120]> {
        // Pairs with the release store of the flag, which comes after all of the line's data (3 above).
        if words[15].load(Ordering::Acquire) != u64::from(flag) {
            return None;
        }
        let mut payload = Self::ZEROS;
        let (data, _) = payload.as_chunks_mut();
        for (value, word) in data.iter_mut().zip(words) {
            // Acquire keeps this thread's next steps, such as its answer, behind the load (4 above).
            *value = word.load(Ordering::Acquire).to_le_bytes();
        }
        Some(payload)
    }
}
