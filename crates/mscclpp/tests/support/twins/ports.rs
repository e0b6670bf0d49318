//! Host twins of `port_channel.cu` and `fifo.cu`.

use std::sync::atomic::Ordering;

use mscclpp::{
    DevicePtr, FifoHandle, KernelParam, PortChannelHandle, ProxyTrigger,
    host::{HostBlock, HostKernel},
};

use super::{in_grid, word_of, word32, word64};

pub(crate) const PORT_CHANNEL_TWINS: &[HostKernel] = &[
    HostKernel { name: "port_call", run: port_call },
    HostKernel { name: "port_turns_send", run: port_turns_send },
    HostKernel { name: "port_turns_check", run: port_turns_check },
    HostKernel { name: "port_flush_overwrite", run: port_flush_overwrite },
];

pub(crate) const FIFO_TWINS: &[HostKernel] = &[
    HostKernel { name: "fifo_push_numbered", run: fifo_push_numbered },
    HostKernel { name: "fifo_push_after_data", run: fifo_push_after_data },
];

unsafe fn port_call(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (ch, call): (PortChannelHandle, i32) = (block.arg(0), block.arg(1));
        let (dst, src, bytes, max_spin) = (block.arg(2), block.arg(3), block.arg(4), block.arg(5));
        let done = match call {
            0 => ch.put(dst, src, bytes),
            1 => ch.signal(),
            2 => ch.put_with_signal(dst, src, bytes),
            3 => ch.put_with_signal_and_flush(dst, src, bytes, max_spin),
            4 => ch.flush(max_spin),
            5 => ch.wait(max_spin),
            _ => ch.poll(),
        };
        word32(block.arg(6)).store(if done { 1 } else { 2 }, Ordering::Relaxed);
    }
}

/// What both sides know of the rounds of `port_turns`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Turns {
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    pub(crate) pieces: u32,
    pub(crate) small_words: u64,
    pub(crate) large_words: u64,
}

// SAFETY: numbers without padding, as in the kernel.
unsafe impl KernelParam for Turns {}

impl Turns {
    /// First word and number of words of a piece, and whether one call puts it and signals.
    fn piece(&self, round: u32, piece: u32) -> (u64, u64, bool) {
        let random = word_of(!self.seed, round.into(), piece.into());
        let large = (self.large_words >> ((random >> 2) % 16)).max(1);
        let most = if random & 1 != 0 { self.small_words } else { large };
        (u64::from(piece) * self.large_words, 1 + (random >> 8) % most, random & 2 != 0)
    }
}

unsafe fn port_turns_send(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (ch, source): (PortChannelHandle, DevicePtr) = (block.arg(0), block.arg(1));
        let (turns, weakened): (Turns, i32) = (block.arg(2), block.arg(3));
        let failed: DevicePtr = block.arg(4);
        for round in 0..turns.rounds {
            for piece in 0..turns.pieces {
                let (first, words, _) = turns.piece(round, piece);
                for word in first..first + words {
                    word64(source, word).store(word_of(turns.seed, round.into(), word), Ordering::Relaxed);
                }
            }
            let all = (0..turns.pieces).all(|piece| {
                let (first, words, fused) = turns.piece(round, piece);
                let (offset, bytes) = (8 * first, 8 * words);
                match (weakened != 0, fused) {
                    (true, _) => ch.put(offset, offset, bytes) && signal_at_once(&ch),
                    (false, true) => ch.put_with_signal(offset, offset, bytes),
                    (false, false) => ch.put(offset, offset, bytes) && ch.signal(),
                }
            });
            let flushed = round % 2 == 0 || ch.flush(-1);
            if !(all && flushed && ch.wait(-1)) {
                return word32(failed).store(round + 1, Ordering::Relaxed);
            }
        }
    }
}

/// What a signal would be that does not wait for its turn.
unsafe fn signal_at_once(ch: &PortChannelHandle) -> bool {
    // SAFETY: see the module.
    unsafe {
        if ch.direct_token.is_null() {
            return ch.signal();
        }
        word64(DevicePtr::from_ptr(ch.direct_token), 0).fetch_add(1, Ordering::Release);
        true
    }
}

unsafe fn port_turns_check(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (ch, arrivals): (PortChannelHandle, DevicePtr) = (block.arg(0), block.arg(1));
        let (turns, mismatches): (Turns, DevicePtr) = (block.arg(2), block.arg(3));
        let failed: DevicePtr = block.arg(4);
        for round in 0..turns.rounds {
            for piece in 0..turns.pieces {
                if !ch.wait(-1) {
                    return word32(failed).store(round + 1, Ordering::Relaxed);
                }
                let (first, words, _) = turns.piece(round, piece);
                let wrong = (first..first + words).filter(|word| {
                    word64(arrivals, *word).load(Ordering::Relaxed)
                        != word_of(turns.seed, round.into(), *word)
                });
                word64(mismatches, 0).fetch_add(wrong.count() as u64, Ordering::Relaxed);
            }
            if !ch.signal() {
                word32(failed).store(round + 1, Ordering::Relaxed);
            }
        }
    }
}

unsafe fn port_flush_overwrite(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channels, n_channels): (DevicePtr, u32) = (block.arg(0), block.arg(1));
        let (source, seed, rounds): (DevicePtr, u64, u32) = (block.arg(2), block.arg(3), block.arg(4));
        let (words, failed): (u32, DevicePtr) = (block.arg(5), block.arg(6));
        let (threads, n) = in_grid(block);
        for thread in threads {
            let ch = channels.as_mut_ptr::<PortChannelHandle>().add((thread % n_channels) as usize).read();
            let (words, mine) = (u64::from(words), u64::from(thread) * u64::from(words));
            for round in 0..u64::from(rounds) {
                let there = (round * u64::from(n) + u64::from(thread)) * words;
                for i in 0..words {
                    word64(source, mine + i).store(word_of(seed, round, there + i), Ordering::Relaxed);
                }
                let done = match thread & 1 {
                    1 => ch.put_with_signal_and_flush(8 * there, 8 * mine, 8 * words, -1),
                    _ => ch.put(8 * there, 8 * mine, 8 * words) && ch.flush(-1),
                };
                if !done {
                    return word32(failed).store(round as u32 + 1, Ordering::Relaxed);
                }
                (0..words).for_each(|i| word64(source, mine + i).store(u64::MAX, Ordering::Relaxed));
            }
        }
    }
}

/// The word of 63 bits that belongs to a trigger's first one: splitmix64's finalizer.
pub(crate) fn mixed(x: u64) -> u64 {
    word_of(x, 0, 0) >> 1
}

unsafe fn fifo_push_numbered(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (fifo, per_thread): (FifoHandle, u32) = (block.arg(0), block.arg(1));
        let (sync_every, max_spin): (u32, i64) = (block.arg(2), block.arg(3));
        let (threads, _) = in_grid(block);
        for thread in threads {
            for i in 0..per_thread {
                let number = u64::from(thread) << 32 | u64::from(i);
                let position = fifo.push(ProxyTrigger { fst: number, snd: mixed(number) }, max_spin);
                let synced = || fifo.sync(position, max_spin) && fifo.poll(position);
                if position == FifoHandle::FAILED
                    || (sync_every != 0 && (i + 1).is_multiple_of(sync_every) && !synced())
                {
                    return word32(block.arg(4)).store(thread + 1, Ordering::Relaxed);
                }
            }
        }
    }
}

unsafe fn fifo_push_after_data(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (fifo, data, rounds): (FifoHandle, DevicePtr, u32) = (block.arg(0), block.arg(1), block.arg(2));
        for i in 1..=rounds {
            word64(data, 0).store(i.into(), Ordering::Relaxed);
            let trigger = ProxyTrigger { fst: i.into(), snd: mixed(i.into()) };
            if fifo.push(trigger, -1) == FifoHandle::FAILED {
                return word32(block.arg(3)).store(i, Ordering::Relaxed);
            }
        }
    }
}
