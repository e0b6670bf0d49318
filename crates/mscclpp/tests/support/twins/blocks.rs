//! Host twins of `concurrency.cu`.

use std::sync::atomic::Ordering;

use mscclpp::{
    DevicePtr,
    host::{DeviceSemaphore, DeviceSyncer, HostBlock, HostKernel},
};

use super::{word32, word64};

pub(crate) const CONCURRENCY_TWINS: &[HostKernel] = &[
    HostKernel { name: "grid_barrier", run: grid_barrier },
    HostKernel { name: "grid_arrive", run: grid_arrive },
    HostKernel { name: "semaphore_set", run: semaphore_set },
    HostKernel { name: "semaphore_turns", run: semaphore_turns },
];

unsafe fn grid_barrier(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (syncer, cells) = (DeviceSyncer::at(block.arg(0)), block.arg(1));
        let (base, rounds, max_spin): (u64, i32, i64) = (block.arg(2), block.arg(3), block.arg(4));
        let (index, blocks) = (block.block_idx()[0].into(), block.grid_dim()[0]);
        for round in 0..rounds.unsigned_abs() {
            let now = base + u64::from(round);
            word64(cells, index).store(now, Ordering::Relaxed);
            let came = syncer.sync(blocks, max_spin);
            let wrong =
                (0..blocks.into()).filter(|i| word64(cells, *i).load(Ordering::Relaxed) != now).count();
            word64(block.arg(5), 0).fetch_add(wrong as u64, Ordering::Relaxed);
            if !(came && syncer.sync(blocks, max_spin)) {
                word32(block.arg(6)).store(round + 1, Ordering::Relaxed);
                return;
            }
        }
    }
}

unsafe fn grid_arrive(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (syncer, cells) = (DeviceSyncer::at(block.arg(0)), block.arg::<DevicePtr>(1));
        let (index, blocks) = (block.block_idx()[0].into(), block.grid_dim()[0]);
        // One kind of writer and no reader meanwhile: an addition in two steps, as in the kernel.
        let add_one = |at, i, value: u64| word64(at, i).store(value + 1, Ordering::Relaxed);
        let value = |at, i| word64(at, i).load(Ordering::Relaxed);
        add_one(cells, index, value(cells, index));
        if syncer.arrive(blocks) {
            let all = (0..blocks.into()).map(|i| value(cells, i)).sum();
            word64(block.arg(2), 0).store(all, Ordering::Relaxed);
            add_one(block.arg(3), 0, value(block.arg(3), 0));
        }
    }
}

unsafe fn semaphore_set(block: &HostBlock<'_>) {
    if block.block_idx()[0] == 0 {
        // SAFETY: see the module.
        unsafe { DeviceSemaphore::at(block.arg(0)).set(block.arg(1)) };
    }
}

unsafe fn semaphore_turns(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let semaphore = DeviceSemaphore::at(block.arg(0));
        let (times, max_spin): (i32, i64) = (block.arg(1), block.arg(2));
        let counter = word64(block.arg(3), 0);
        for _ in 0..times {
            if !semaphore.acquire(max_spin) {
                word32(block.arg(4)).store(1, Ordering::Relaxed);
                return;
            }
            // In two steps, as in the kernel.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            semaphore.release();
        }
    }
}
