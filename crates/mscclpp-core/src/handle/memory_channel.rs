use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_gpu::{
    DevicePtr, KernelParam,
    host::{self, Backoff},
};

use super::{BaseMemoryChannelHandle, element::Element};
use crate::{
    packet::{Packet, ThreadPacket},
    protocol::StatusWords,
};

/// What kernels do with a channel that moves data: `MemoryChannelDeviceHandle` in the headers.
///
/// Its methods, with those of [`BaseMemoryChannelHandle`], are the host twins of the header's, for kernels of the Host
/// platform; any number of threads may call them at once. It holds no reference: the [`crate::MemoryChannel`] must
/// outlive the kernels that use it.
///
/// Data goes between `dst`, the peer's memory, and `src`, this side's; packets go into the peer's packet buffer, which
/// is `dst` for whoever puts them, and are taken out of `packet_buffer` by their receiver.
///
/// The threads of an operation share its work: each calls with its number, from 0, and with how many they are, and the
/// operation is done when all of them have returned. Sizes are in bytes and any will do.
///
/// ```
/// use mscclpp_core::{LL16Packet, MemoryChannelHandle};
/// use mscclpp_gpu::host::HostBlock;
///
/// /// `__global__ void exchange(MemoryChannelDeviceHandle ch, uint64_t bytes, uint32_t flag)`, for one block
/// unsafe fn exchange(block: &HostBlock<'_>) {
///     let n = block.block_dim()[0];
///     // SAFETY: these are its arguments; the launch promises a live channel and memories of that size.
///     unsafe {
///         let (channel, bytes, flag): (MemoryChannelHandle, u64, u32) = (block.arg(0), block.arg(1), block.arg(2));
///         block.threads().all(|thread| channel.put_packets::<LL16Packet>(0, 0, bytes, thread, n, flag));
///         // What a thread waits for may have been put by any thread of the peer, so this is another phase.
///         block.threads().all(|thread| channel.unpack_packets::<LL16Packet>(0, 0, bytes, thread, n, flag, -1));
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MemoryChannelHandle {
    /// The semaphore it signals and waits on.
    pub base: BaseMemoryChannelHandle,
    /// The peer's memory, as mapped here.
    pub dst: *mut u8,
    /// This side's memory.
    pub src: *mut u8,
    /// This side's packet buffer, or null.
    pub packet_buffer: *mut u8,
    /// [`MemoryChannelHandle::LINES_ARRIVE_WHOLE`], or 0.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: pointers and numbers, plain data, laid out as in the header (`tests/layout.rs` compares).
unsafe impl KernelParam for MemoryChannelHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations.
unsafe impl Send for MemoryChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for MemoryChannelHandle {}

impl std::ops::Deref for MemoryChannelHandle {
    type Target = BaseMemoryChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

// SAFETY of the methods: the callers promise a live channel of the Host platform, so that its pointers are to memory
// that is mapped here, and ranges inside of it; everybody accesses it with atomics.
impl MemoryChannelHandle {
    /// In `flags`: a line of 128 bytes that a warp stores arrives whole at the peer, so LL128 packets work.
    pub const LINES_ARRIVE_WHOLE: u32 = 1;

    /// Element `index` of the peer's memory.
    ///
    /// # Safety
    /// The handle must be one of a live channel of the Host platform, and the element inside the memory and aligned.
    #[must_use]
    pub unsafe fn read<T: Element>(&self, index: u64) -> T {
        // SAFETY: the caller's promise.
        unsafe { T::load(self.dst.wrapping_add(index as usize * size_of::<T>()).cast()) }
    }

    /// Sets element `index` of the peer's memory.
    ///
    /// # Safety
    /// As [`Self::read`].
    pub unsafe fn write<T: Element>(&self, index: u64, value: T) {
        // SAFETY: the caller's promise.
        unsafe { value.store(self.dst.wrapping_add(index as usize * size_of::<T>()).cast()) };
    }

    /// This thread's share of copying `bytes` bytes from `origin_offset` of this side's memory to `target_offset` of
    /// the peer's. A signal behind it, by this thread or one that this one has met at a barrier, publishes it.
    ///
    /// # Safety
    /// The handle must be one of a live channel of the Host platform, the ranges inside its memories, and `thread` less
    /// than `n_threads`.
    pub unsafe fn put(
        &self,
        target_offset: u64,
        origin_offset: u64,
        bytes: u64,
        thread: u32,
        n_threads: u32,
    ) {
        let (to, from) = (at(self.dst, target_offset), at(self.src, origin_offset));
        // SAFETY: the caller's promise.
        unsafe { copy_share(to, from, bytes, thread, n_threads) };
    }

    /// This thread's share of copying `bytes` bytes from `target_offset` of the peer's memory to `origin_offset` of
    /// this side's.
    ///
    /// # Safety
    /// As [`Self::put`].
    pub unsafe fn get(
        &self,
        target_offset: u64,
        origin_offset: u64,
        bytes: u64,
        thread: u32,
        n_threads: u32,
    ) {
        let (to, from) = (at(self.src, origin_offset), at(self.dst, target_offset));
        // SAFETY: the caller's promise.
        unsafe { copy_share(to, from, bytes, thread, n_threads) };
    }

    /// This thread's share of putting `bytes` bytes from `origin_offset` of this side's memory as packets into the
    /// peer's packet buffer, from its byte `target_offset` on ([`Packet::buffer_size`] says how far). Neither a
    /// signal nor a fence is needed. `flag` is not that of the round before. Waits for nobody.
    ///
    /// Returns whether it was done. If it was refused nothing was put, and [`crate::Semaphore::check`] says so: for flag
    /// 0, for packets that are not aligned to their size, and for LL128 where lines need not arrive whole or with
    /// threads that are no whole warps. Of these, only the lines concern a thread without a packet.
    ///
    /// # Safety
    /// As [`Self::put`]; the packets' range is inside `dst`.
    pub unsafe fn put_packets<P: Packet>(
        &self,
        target_offset: u64,
        origin_offset: u64,
        bytes: u64,
        thread: u32,
        n_threads: u32,
        flag: u32,
    ) -> bool {
        let packets = at(self.dst, target_offset);
        // SAFETY: the caller's promise.
        unsafe {
            if !self.allows::<P>(packets, has_packet::<P>(bytes, thread), n_threads, flag) {
                return false;
            }
            for index in share_of_packets::<P>(bytes, thread, n_threads) {
                let mut payload = P::ZEROS;
                let start = index * P::PAYLOAD;
                let len = P::PAYLOAD.min(bytes - start) as usize;
                host::read(at(self.src, origin_offset + start), &mut payload.as_mut()[..len]);
                P::store(words::<P>(packets, index), &payload, flag);
            }
        }
        true
    }

    /// This thread's share of taking `bytes` bytes that the peer put as packets with `flag` into this side's packet
    /// buffer, from its byte `target_offset` on, and storing them at `origin_offset` of this side's memory.
    ///
    /// Waits for each packet: without bound if `max_spins` is negative, else for that many polls. Returns whether all
    /// came. If not, the wait ran out of polls (and can be repeated) or was aborted from the host (so will all later
    /// ones), or the call was refused as [`Self::put_packets`] is; [`crate::Semaphore::check`] tells which.
    ///
    /// # Safety
    /// As [`Self::put_packets`]; the packets' range is inside the packet buffer.
    #[must_use]
    #[allow(clippy::too_many_arguments, reason = "those of the header")]
    pub unsafe fn unpack_packets<P: Packet>(
        &self,
        target_offset: u64,
        origin_offset: u64,
        bytes: u64,
        thread: u32,
        n_threads: u32,
        flag: u32,
        max_spins: i64,
    ) -> bool {
        let packets = at(self.packet_buffer, target_offset);
        // SAFETY: the caller's promise.
        unsafe {
            self.allows::<P>(packets, has_packet::<P>(bytes, thread), n_threads, flag)
                && share_of_packets::<P>(bytes, thread, n_threads).all(|index| {
                    let Some(payload) = self.take::<P>(packets, index, flag, max_spins) else { return false };
                    let start = index * P::PAYLOAD;
                    let len = P::PAYLOAD.min(bytes - start) as usize;
                    host::write(at(self.src, origin_offset + start), &payload.as_ref()[..len]);
                    true
                })
        }
    }

    /// The data of packet `index` of this side's packet buffer, once it is there with `flag`; none as
    /// [`Self::unpack_packets`] returns false.
    ///
    /// # Safety
    /// As [`Self::unpack_packets`].
    #[must_use]
    pub unsafe fn unpack_packet<P: ThreadPacket>(
        &self,
        index: u64,
        flag: u32,
        max_spins: i64,
    ) -> Option<P::Payload> {
        let packets = at(self.packet_buffer, 0);
        // SAFETY: the caller's promise.
        unsafe {
            self.allows::<P>(packets, true, 1, flag)
                .then(|| self.take::<P>(packets, index, flag, max_spins))
                .flatten()
        }
    }

    /// Waits for one packet.
    unsafe fn take<P: Packet>(
        &self,
        packets: DevicePtr,
        index: u64,
        flag: u32,
        max_spins: i64,
    ) -> Option<P::Payload> {
        // SAFETY: the caller's promise.
        let (words, status) = unsafe { (words::<P>(packets, index), StatusWords::at(self.status)) };
        let mut backoff = Backoff::new();
        status.poll_until(|| P::load(words, flag), max_spins, || backoff.wait())
    }

    /// Whether packets can be there, with that flag, and `n_threads` threads can handle them, as far as the thread has
    /// any; the host is told if not.
    unsafe fn allows<P: Packet>(
        &self,
        packets: DevicePtr,
        has_packet: bool,
        n_threads: u32,
        flag: u32,
    ) -> bool {
        let by_link = P::LANES == 1 || self.flags & Self::LINES_ARRIVE_WHOLE != 0;
        let can_be = flag != 0 && packets.0.is_multiple_of(P::SIZE) && n_threads.is_multiple_of(P::LANES);
        let allowed = by_link && (can_be || !has_packet);
        if !allowed {
            // SAFETY: the caller's promise.
            unsafe { StatusWords::at(self.status) }.refused.store(1, Ordering::Release);
        }
        allowed
    }
}

fn at(base: *mut u8, offset: u64) -> DevicePtr {
    DevicePtr::from_ptr(base).add(offset)
}

/// # Safety
/// The packet is device memory of the Host platform and aligned.
unsafe fn words<'a, P: Packet>(packets: DevicePtr, index: u64) -> &'a [AtomicU64] {
    // SAFETY: the caller's promise; everybody uses atomics there.
    unsafe { std::slice::from_raw_parts(packets.add(index * P::SIZE).as_mut_ptr(), P::WORDS) }
}

/// Whether a thread, or of packets that a warp handles its warp, has a packet of `bytes` bytes.
fn has_packet<P: Packet>(bytes: u64, thread: u32) -> bool {
    const WARP: u32 = 32;
    let (first, packets) =
        if P::LANES == 1 { (thread, 1) } else { (thread / WARP, u64::from(WARP / P::LANES)) };
    u64::from(first) * packets * P::PAYLOAD < bytes
}

/// The packets of a thread, by their number. Where several handle one together, its first does here what the warp does
/// at once on a GPU.
fn share_of_packets<P: Packet>(bytes: u64, thread: u32, n_threads: u32) -> impl Iterator<Item = u64> {
    let leads = thread.is_multiple_of(P::LANES);
    let (group, groups) = (u64::from(thread / P::LANES), u64::from(n_threads / P::LANES));
    let packets = if leads { bytes.div_ceil(P::PAYLOAD) } else { 0 };
    (group..packets).step_by(groups.max(1) as usize)
}

/// A thread's share of a copy: a piece that begins and ends at words of the destination, so that no two threads share
/// one; what is left at the ends goes to the first and the last.
///
/// # Safety
/// As [`host::copy`].
unsafe fn copy_share(to: DevicePtr, from: DevicePtr, bytes: u64, thread: u32, n_threads: u32) {
    let head = to.0.wrapping_neg() % 8;
    let words = u128::from(bytes.saturating_sub(head) / 8);
    let (thread, n_threads) = (u128::from(thread), u128::from(n_threads.max(1)));
    let border = |n: u128| match n {
        0 => 0,
        _ if n == n_threads => bytes,
        // Not more than `bytes`; the product fits 128 bits.
        _ => bytes.min(head + 8 * (words * n / n_threads) as u64),
    };
    let (start, end) = (border(thread), border(thread + 1));
    // SAFETY: the piece is inside the range.
    unsafe { host::copy(to.add(start), from.add(start), end - start) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LL8Packet, LL16Packet, LL128Packet};

    /// Who has a packet is who has a share, itself or a thread of its warp.
    fn check<P: Packet>(warp: u32) {
        const THREADS: u32 = 128;
        for bytes in (0..2000).step_by(7) {
            let has_share = |thread| share_of_packets::<P>(bytes, thread, THREADS).next().is_some();
            for thread in 0..THREADS {
                let first = thread / warp * warp;
                let expected = (first..first + warp).any(has_share);
                assert_eq!(has_packet::<P>(bytes, thread), expected, "thread {thread} of {bytes} bytes");
            }
        }
    }

    #[test]
    fn threads_without_a_share_have_no_packet() {
        check::<LL8Packet>(1);
        check::<LL16Packet>(1);
        check::<LL128Packet>(32);
    }
}
