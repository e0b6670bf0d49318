//! Of `port_bench.cu`. Safety: see the module above.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mscclpp::{
    DevicePtr, FifoHandle, LL16Packet, Packet, PortChannelHandle, ProxyTrigger,
    host::{self, Backoff, HostBlock, HostKernel, PacketFormat},
};

use crate::ports::element;

pub(crate) const PORT_BENCH: &[HostKernel] = &[
    HostKernel { name: "port_put", run: port_put },
    HostKernel { name: "port_ping_pong", run: port_ping_pong },
    HostKernel { name: "port_packet_ping_pong", run: port_packet_ping_pong },
    HostKernel { name: "fifo_push", run: fifo_push },
    HostKernel { name: "fifo_push_and_sync", run: fifo_push_and_sync },
];

unsafe fn port_put(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    let (channel, dst_offset, src_offset, bytes, rounds, failed) = unsafe {
        (
            block.arg::<PortChannelHandle>(0),
            block.arg::<u64>(1),
            block.arg::<u64>(2),
            block.arg::<u64>(3),
            block.arg::<i32>(4),
            block.arg::<DevicePtr>(5),
        )
    };
    for round in 0..rounds.unsigned_abs() {
        // SAFETY: see the module above.
        let done = unsafe {
            channel.signal()
                && channel.wait(-1)
                && channel.put_with_signal(dst_offset, src_offset, bytes)
                && channel.wait(-1)
        };
        if !done {
            // SAFETY: see the module above.
            return unsafe { leave(failed, round) };
        }
    }
}

/// What both ping-pongs get.
struct Game {
    channel: PortChannelHandle,
    source: DevicePtr,
    arrivals: DevicePtr,
    count: u32,
    rounds: u32,
    first: u32,
}

impl Game {
    /// # Safety
    /// See the module above.
    unsafe fn of(block: &HostBlock<'_>) -> Self {
        // SAFETY: see the module above.
        unsafe {
            Self {
                channel: block.arg(0),
                source: block.arg(1),
                arrivals: block.arg(2),
                count: block.arg(3),
                rounds: block.arg::<i32>(4).unsigned_abs(),
                first: block.arg::<i32>(5).unsigned_abs(),
            }
        }
    }

    /// Takes turns. `send` gets the round and says whether it was done, `receive` how many elements were wrong, or
    /// nothing if none came.
    ///
    /// # Safety
    /// See the module above.
    unsafe fn play(
        &self,
        [mismatches, failed]: [DevicePtr; 2],
        send: impl Fn(u32) -> bool,
        receive: impl Fn(u32) -> Option<u32>,
    ) {
        let mut wrong = 0;
        for step in 0..2 * self.rounds {
            let round = step / 2;
            let done = if step.is_multiple_of(2) == (self.first != 0) {
                send(round)
            } else {
                receive(round).map(|n| wrong += n).is_some()
            };
            if !done {
                // SAFETY: see the module above.
                return unsafe { leave(failed, round) };
            }
        }
        // SAFETY: see the module above: four bytes of device memory that only this kernel uses now.
        unsafe {
            let mismatches = mismatches.as_mut_ptr::<u32>();
            mismatches.write(mismatches.read() + wrong);
        }
    }
}

unsafe fn port_ping_pong(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    let (game, outcome) = unsafe { (Game::of(block), [block.arg(6), block.arg(7)]) };
    let Game { channel, source, arrivals, count, first, .. } = game;
    let message = |round, side| -> Vec<u8> {
        (0..count).flat_map(|index| element(round, side, index).to_le_bytes()).collect()
    };
    let bytes = 4 * u64::from(count);
    // SAFETY: see the module above: the message is inside the channel's memory.
    let send = |round| unsafe {
        host::write(source, &message(round, first));
        channel.put_with_signal(0, 0, bytes) && channel.flush(-1)
    };
    let receive = |round| {
        // SAFETY: see the module above.
        if !unsafe { channel.wait(-1) } {
            return None;
        }
        let mut got = vec![0; bytes as usize];
        // SAFETY: as above: the peer puts nothing before it is answered.
        unsafe { host::read(arrivals, &mut got) };
        let expected = message(round, 1 - first);
        Some(got.chunks(4).zip(expected.chunks(4)).filter(|(got, expected)| got != expected).count() as u32)
    };
    // SAFETY: see the module above.
    unsafe { game.play(outcome, send, receive) };
}

unsafe fn port_packet_ping_pong(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    let (game, flag, outcome) =
        unsafe { (Game::of(block), block.arg::<u32>(6), [block.arg(7), block.arg(8)]) };
    let Game { channel, source, arrivals, count, first, .. } = game;
    let payload = |round, side, index| {
        let x = element(round, side, index);
        (u64::from(!x) << 32 | u64::from(x)).to_le_bytes()
    };
    let packet = |memory: DevicePtr, index: u32| {
        let at = memory.add(LL16Packet::SIZE * u64::from(index));
        // SAFETY: see the module above: packets are inside the memory and aligned, and all use atomics on them.
        unsafe { std::slice::from_raw_parts(at.as_mut_ptr::<AtomicU64>(), LL16Packet::WORDS) }
    };
    let send = |round| {
        for index in 0..count {
            LL16Packet::store(packet(source, index), &payload(round, first, index), flag + round);
        }
        // SAFETY: see the module above.
        unsafe { channel.put(0, 0, LL16Packet::SIZE * u64::from(count)) }
    };
    // SAFETY: see the module above: the first of the status words of a live channel.
    let abort = unsafe { AtomicU32::from_ptr(channel.base.semaphore.status) };
    let receive = |round| {
        let mut wrong = 0;
        for index in 0..count {
            let mut backoff = Backoff::new();
            let got = loop {
                if let Some(got) = LL16Packet::load(packet(arrivals, index), flag + round) {
                    break got;
                }
                if abort.load(Ordering::Relaxed) != 0 {
                    return None;
                }
                backoff.wait();
            };
            wrong += u32::from(got != payload(round, 1 - first, index));
        }
        Some(wrong)
    };
    // SAFETY: see the module above.
    unsafe { game.play(outcome, send, receive) };
}

unsafe fn fifo_push(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    unsafe { push(block, |_, _| true) };
}

unsafe fn fifo_push_and_sync(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    unsafe { push(block, |fifo, position| fifo.sync(position, -1)) };
}

/// In each turn all threads push, and then all do what is `behind` a push.
unsafe fn push(block: &HostBlock<'_>, behind: impl Fn(&FifoHandle, u64) -> bool) {
    // SAFETY: see the module above.
    let (fifo, per_thread, failed) =
        unsafe { (block.arg::<FifoHandle>(0), block.arg::<u32>(1), block.arg::<DevicePtr>(2)) };
    for i in 0..per_thread {
        let trigger = |thread: u32| ProxyTrigger { fst: thread.into(), snd: i.into() };
        // SAFETY: see the module above.
        let pushed = block.threads().map(|thread| unsafe { fifo.push(trigger(thread), -1) });
        let positions: Vec<u64> = pushed.collect();
        if positions.iter().any(|position| *position == FifoHandle::FAILED || !behind(&fifo, *position)) {
            // SAFETY: see the module above.
            return unsafe { leave(failed, i) };
        }
    }
}

/// The round in which a call failed.
unsafe fn leave(failed: DevicePtr, round: u32) {
    // SAFETY: see the module above: four bytes of device memory that only this kernel writes.
    unsafe { failed.as_mut_ptr::<u32>().write(round + 1) };
}
