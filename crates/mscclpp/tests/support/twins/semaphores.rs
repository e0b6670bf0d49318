//! Host twins of `semaphore.cu` and `signal_data.cu`.

use std::sync::atomic::Ordering;

use mscclpp::{
    BaseMemoryChannelHandle, DevicePtr,
    host::{HostBlock, HostKernel},
};

use super::{word_of, word32, word64};

pub(crate) const SEMAPHORE_TWINS: &[HostKernel] = &[
    HostKernel { name: "wait_once", run: wait_once },
    HostKernel { name: "poll_once", run: poll_once },
    HostKernel { name: "signal_n", run: signal_n },
    HostKernel { name: "contended", run: contended },
];

pub(crate) const SIGNAL_DATA_TWINS: &[HostKernel] = &[
    HostKernel { name: "signal_data_write", run: signal_data_write },
    HostKernel { name: "signal_data_check", run: signal_data_check },
];

const SIGNALLED: u32 = 1;
const NOT_SIGNALLED: u32 = 2;

unsafe fn channel(block: &HostBlock<'_>) -> BaseMemoryChannelHandle {
    // SAFETY: every kernel's first argument.
    unsafe { block.arg(0) }
}

unsafe fn wait_once(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let signalled = channel(block).wait(block.arg(1));
        let said = if signalled { SIGNALLED } else { NOT_SIGNALLED };
        word32(block.arg(2)).store(said, Ordering::Relaxed);
    }
}

unsafe fn poll_once(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let said = if channel(block).poll() { SIGNALLED } else { NOT_SIGNALLED };
        word32(block.arg(1)).store(said, Ordering::Relaxed);
    }
}

unsafe fn signal_n(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        for _ in 0..block.arg::<i32>(1) {
            channel(block).signal();
        }
    }
}

/// Every thread takes as many signals as it sends, so one thread after the other gets through as long as the peer's do.
unsafe fn contended(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let channel = channel(block);
        let (per_thread, max_spin, attempts, taken) =
            (block.arg::<i32>(1), block.arg::<i64>(2), block.arg::<i64>(3), block.arg::<DevicePtr>(4));
        for thread in block.threads() {
            let thread = thread + block.block_idx()[0] * block.block_dim()[0];
            let way = thread % 3;
            for _ in 0..per_thread {
                if thread & 1 == 1 {
                    channel.relaxed_signal();
                } else {
                    channel.signal();
                }
                if !take_one(&channel, way, max_spin, attempts) {
                    break;
                }
                word64(taken, u64::from(way)).fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

unsafe fn take_one(channel: &BaseMemoryChannelHandle, way: u32, max_spin: i64, attempts: i64) -> bool {
    // SAFETY: see the module.
    unsafe {
        match way {
            0 => channel.wait(-1),
            1 => (0..attempts).any(|_| channel.wait(max_spin)),
            _ => (0..attempts).any(|_| {
                let got = channel.poll();
                if !got {
                    std::thread::yield_now();
                }
                got
            }),
        }
    }
}

struct Exchange {
    channel: BaseMemoryChannelHandle,
    buffer: DevicePtr,
    words: u64,
    rounds: i32,
    seed: u64,
    relaxed: bool,
    max_spin: i64,
}

unsafe fn exchange(block: &HostBlock<'_>) -> Exchange {
    // SAFETY: see the module.
    unsafe {
        Exchange {
            channel: channel(block),
            buffer: block.arg(1),
            words: block.arg(2),
            rounds: block.arg(3),
            seed: block.arg(4),
            relaxed: block.arg::<i32>(5) != 0,
            max_spin: block.arg(6),
        }
    }
}

impl Exchange {
    unsafe fn signal(&self) {
        // SAFETY: see the module.
        unsafe { if self.relaxed { self.channel.relaxed_signal() } else { self.channel.signal() } }
    }

    unsafe fn wait(&self) -> bool {
        // SAFETY: see the module.
        unsafe {
            match self.relaxed {
                true => self.channel.relaxed_wait(self.max_spin),
                false => self.channel.wait(self.max_spin),
            }
        }
    }
}

unsafe fn signal_data_write(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let it = exchange(block);
        for round in 0..it.rounds {
            for i in 0..it.words {
                word64(it.buffer, i)
                    .store(word_of(it.seed, round.unsigned_abs().into(), i), Ordering::Relaxed);
            }
            it.signal();
            if !it.wait() {
                word32(block.arg(7)).store(round.unsigned_abs() + 1, Ordering::Relaxed);
                return;
            }
        }
    }
}

unsafe fn signal_data_check(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let it = exchange(block);
        for round in 0..it.rounds {
            if !it.wait() {
                word32(block.arg(8)).store(round.unsigned_abs() + 1, Ordering::Relaxed);
                return;
            }
            let wrong = (0..it.words)
                .filter(|&i| {
                    word64(it.buffer, i).load(Ordering::Relaxed)
                        != word_of(it.seed, round.unsigned_abs().into(), i)
                })
                .count();
            word64(block.arg(7), 0).fetch_add(wrong as u64, Ordering::Relaxed);
            it.signal();
        }
    }
}
