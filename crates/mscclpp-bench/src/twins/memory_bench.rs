//! Of `memory_bench.cu`. Safety: see the module above.

use std::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use mscclpp::{
    BaseMemoryChannelHandle, DevicePtr, LL8Packet, LL16Packet, LL128Packet, MemoryChannelHandle, Packet,
    host::{DeviceSyncer, HostBlock, HostKernel},
};

use crate::memory::{OwnChannels, Round, state};

pub(crate) const MEMORY_BENCH: &[HostKernel] = &[
    HostKernel { name: "memory_put", run: on_grid::<Put> },
    HostKernel { name: "memory_put_own", run: on_own_channels::<Put> },
    HostKernel { name: "memory_get", run: on_grid::<Get> },
    HostKernel { name: "memory_get_own", run: on_own_channels::<Get> },
    HostKernel { name: "memory_put_ll8", run: on_grid::<PutPackets<LL8Packet>> },
    HostKernel { name: "memory_put_ll8_own", run: on_own_channels::<PutPackets<LL8Packet>> },
    HostKernel { name: "memory_put_ll16", run: on_grid::<PutPackets<LL16Packet>> },
    HostKernel { name: "memory_put_ll16_own", run: on_own_channels::<PutPackets<LL16Packet>> },
    HostKernel { name: "memory_put_ll128", run: on_grid::<PutPackets<LL128Packet>> },
    HostKernel { name: "memory_put_ll128_own", run: on_own_channels::<PutPackets<LL128Packet>> },
];

/// What a block does between the barriers.
trait Move {
    /// Whether the peer has to be told that it is done.
    const SIGNALS_END: bool;

    unsafe fn play(block: &HostBlock<'_>, channel: &MemoryChannelHandle, round: &Round) -> bool;
}

struct Put;
struct Get;
struct PutPackets<P>(PhantomData<P>);

impl Move for Put {
    const SIGNALS_END: bool = true;

    unsafe fn play(block: &HostBlock<'_>, channel: &MemoryChannelHandle, round: &Round) -> bool {
        let (offset, bytes) = part(block, round);
        for thread in block.threads() {
            // SAFETY: see the module above.
            unsafe { channel.put(round.incoming + offset, offset, bytes, thread, block.block_dim()[0]) };
        }
        true
    }
}

impl Move for Get {
    const SIGNALS_END: bool = false;

    unsafe fn play(block: &HostBlock<'_>, channel: &MemoryChannelHandle, round: &Round) -> bool {
        let (offset, bytes) = part(block, round);
        for thread in block.threads() {
            // SAFETY: see the module above.
            unsafe { channel.get(offset, round.incoming + offset, bytes, thread, block.block_dim()[0]) };
        }
        true
    }
}

impl<P: Packet> Move for PutPackets<P> {
    const SIGNALS_END: bool = false;

    unsafe fn play(block: &HostBlock<'_>, channel: &MemoryChannelHandle, round: &Round) -> bool {
        // SAFETY: see the module above: the flag of this block, which nobody else uses.
        let flag = unsafe { &*word(round.state.add(state::FLAGS + 4 * u64::from(block.block_idx()[0]))) };
        let flag = flag.fetch_add(1, Ordering::Relaxed) + 1;
        let (bytes, incoming) = (round.bytes, round.incoming);
        let (putters, first_unpacker) = (round.putters, round.first_unpacker);
        let unpackers = round.workers - first_unpacker;
        let (me, width) = (block.block_idx()[0], block.block_dim()[0]);
        // Two phases: what a thread takes may come from any thread of the peer.
        let put = || {
            block.threads().all(|thread| {
                let thread = numbered(thread, me, putters);
                // SAFETY: see the module above.
                unsafe { channel.put_packets::<P>(0, 0, bytes, thread, putters * width, flag) }
            })
        };
        let unpack = || {
            block.threads().all(|thread| {
                let thread = numbered(thread, me - first_unpacker, unpackers);
                // SAFETY: see the module above.
                unsafe {
                    channel.unpack_packets::<P>(0, incoming, bytes, thread, unpackers * width, flag, -1)
                }
            })
        };
        (me >= putters || put()) && (me < first_unpacker || unpack())
    }
}

unsafe fn on_grid<M: Move>(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    let (channel, round) = unsafe { (block.arg::<MemoryChannelHandle>(0), block.arg::<Round>(1)) };
    let (is_first, full) = (block.block_idx()[0] == 0, round.full != 0);
    // SAFETY: see the module above.
    let (begin, end) = unsafe {
        (DeviceSyncer::at(round.state.add(state::BEGIN)), DeviceSyncer::at(round.state.add(state::END)))
    };
    let sync = |syncer: &DeviceSyncer| match NonNull::new(channel.status) {
        // SAFETY: see the module above: the channel is live.
        Some(status) => unsafe { syncer.sync_or_abort(round.workers, -1, status) },
        None => syncer.sync(round.workers, -1),
    };
    let before = || {
        // SAFETY: see the module above.
        let met = !is_first || unsafe { shake_hands(&channel) };
        sync(begin) && met
    };
    let after = || {
        let (synced, signals) = if full { (sync(end), is_first) } else { (true, end.arrive(round.workers)) };
        if signals {
            // SAFETY: see the module above.
            unsafe { channel.signal() };
        }
        // SAFETY: see the module above.
        (!is_first || unsafe { channel.wait(-1) }) && synced
    };
    // SAFETY: see the module above.
    unsafe { play::<M>(block, &channel, &round, before, after) };
}

unsafe fn on_own_channels<M: Move>(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    let (channel, round, own) =
        unsafe { (block.arg::<MemoryChannelHandle>(0), block.arg::<Round>(1), block.arg::<OwnChannels>(2)) };
    let Some(own) = own.of.get(block.block_idx()[0] as usize) else { return };
    // SAFETY: see the module above.
    let before = || unsafe { shake_hands(own) };
    let after = || {
        // SAFETY: see the module above.
        unsafe {
            own.signal();
            own.wait(-1)
        }
    };
    // SAFETY: see the module above.
    unsafe { play::<M>(block, &channel, &round, before, after) };
}

/// A wait that was aborted does not end the round: all later ones end at once, and nobody waits for a block that left.
unsafe fn play<M: Move>(
    block: &HostBlock<'_>,
    channel: &MemoryChannelHandle,
    round: &Round,
    before: impl FnOnce() -> bool,
    after: impl FnOnce() -> bool,
) {
    if block.block_idx()[0] >= round.workers {
        return;
    }
    let mut good = before();
    // SAFETY: see the module above.
    good &= unsafe { M::play(block, channel, round) };
    if M::SIGNALS_END {
        good &= after();
    }
    if !good {
        // SAFETY: see the module above: all blocks use atomics on it.
        unsafe { &*word(round.failed) }.store(1, Ordering::Relaxed);
    }
}

/// Offset and size of what the block puts or gets.
fn part(block: &HostBlock<'_>, round: &Round) -> (u64, u64) {
    let offset = (u64::from(block.block_idx()[0]) * round.part).min(round.bytes);
    (offset, round.part.min(round.bytes - offset))
}

/// The number of a thread, `thread` of block `block`, among those of `count` blocks.
fn numbered(thread: u32, block: u32, count: u32) -> u32 {
    (thread / 32 * count + block) * 32 + thread % 32
}

unsafe fn shake_hands(channel: &BaseMemoryChannelHandle) -> bool {
    // SAFETY: see the module above.
    unsafe {
        channel.relaxed_signal();
        channel.relaxed_wait(-1)
    }
}

fn word(ptr: DevicePtr) -> *const AtomicU32 {
    ptr.as_mut_ptr::<AtomicU32>()
}
