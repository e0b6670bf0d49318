//! Host twins of `memory_channel.cu`.

use std::sync::atomic::Ordering;

use mscclpp::{
    DevicePtr, MemoryChannelHandle,
    host::{self, DeviceSyncer, HostBlock, HostKernel},
};

use super::{in_grid, word_of, word32, word64};

pub(crate) const MEMORY_CHANNEL_TWINS: &[HostKernel] = &[
    HostKernel { name: "channel_put", run: channel_put },
    HostKernel { name: "channel_get", run: channel_get },
    HostKernel { name: "channel_write_read", run: channel_write_read },
    HostKernel { name: "copy_sweep", run: copy_sweep },
    HostKernel { name: "put_round", run: put_round },
];

unsafe fn channel_put(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channel, to, from, bytes): (MemoryChannelHandle, u64, u64, u64) =
            (block.arg(0), block.arg(1), block.arg(2), block.arg(3));
        let (threads, n) = in_grid(block);
        threads.for_each(|thread| channel.put(to, from, bytes, thread, n));
    }
}

unsafe fn channel_get(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channel, target, origin, bytes): (MemoryChannelHandle, u64, u64, u64) =
            (block.arg(0), block.arg(1), block.arg(2), block.arg(3));
        let (threads, n) = in_grid(block);
        threads.for_each(|thread| channel.get(target, origin, bytes, thread, n));
    }
}

unsafe fn channel_write_read(block: &HostBlock<'_>) {
    if block.block_idx()[0] != 0 {
        return;
    }
    // SAFETY: see the module.
    unsafe {
        let (channel, index, value): (MemoryChannelHandle, u64, u64) =
            (block.arg(0), block.arg(1), block.arg(2));
        channel.write(index, value);
        word64(block.arg(3), 0).store(channel.read(index), Ordering::Relaxed);
    }
}

/// The bytes of a source, and those of a destination before the copy.
fn pattern(seed: u64, size: u64, len: u64) -> (Vec<u8>, Vec<u8>) {
    let word = |i| word_of(seed, size, i);
    ((0..len).map(|i| word(i) as u8).collect(), (0..len).map(|i| (!word(i) >> 8) as u8).collect())
}

unsafe fn copy_sweep(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let channel: MemoryChannelHandle = block.arg(0);
        let (slot, begin, end): (u64, u64, u64) = (block.arg(1), block.arg(2), block.arg(3));
        let (get, seed) = (block.arg::<i32>(4) != 0, block.arg(5));
        let (index, n) = (u64::from(block.block_idx()[0]), block.block_dim()[0]);
        let base = index * slot;
        let [local, remote] = [channel.src, channel.dst].map(|ptr| DevicePtr::from_ptr(ptr).add(base));
        let (from, to) = if get { (remote, local) } else { (local, remote) };
        let mut wrong = 0;
        for size in (begin + index..end).step_by(block.grid_dim()[0] as usize) {
            let (source, poison) = pattern(seed, size, size + 64);
            host::write(from, &source);
            for alignments in 0..256 {
                let (to_offset, from_offset) = (16 + alignments % 16, 16 + alignments / 16);
                host::write(to, &poison);
                for thread in block.threads() {
                    match get {
                        true => channel.get(base + from_offset, base + to_offset, size, thread, n),
                        false => channel.put(base + to_offset, base + from_offset, size, thread, n),
                    }
                }
                let mut expected = poison.clone();
                let [to_offset, from_offset, size] = [to_offset, from_offset, size].map(|n| n as usize);
                expected[to_offset..][..size].copy_from_slice(&source[from_offset..][..size]);
                let mut got = vec![0; expected.len()];
                host::read(to, &mut got);
                wrong += got.iter().zip(&expected).filter(|(got, expected)| got != expected).count() as u64;
            }
        }
        word64(block.arg(6), 0).fetch_add(wrong, Ordering::Relaxed);
    }
}

unsafe fn put_round(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channel, syncers, round): (MemoryChannelHandle, DevicePtr, DevicePtr) =
            (block.arg(0), block.arg(1), block.arg(2));
        let (words, my_seed, peer_seed): (u64, u64, u64) = (block.arg(3), block.arg(4), block.arg(5));
        let (max_spin, mismatches, failed): (i64, DevicePtr, DevicePtr) =
            (block.arg(6), block.arg(7), block.arg(8));
        let (syncer, arrivals) = (DeviceSyncer::at(syncers), DeviceSyncer::at(syncers.add(8)));
        let (is_first, blocks) = (block.block_idx()[0] == 0, block.grid_dim()[0]);
        let (threads, n) = in_grid(block);
        let own = |thread: u32| (u64::from(thread)..words).step_by(n as usize);
        let now = word64(round, 0).load(Ordering::Relaxed);
        let mine = DevicePtr::from_ptr(channel.src);
        let fail = || word32(failed).store(now as u32 + 1, Ordering::Relaxed);
        for i in threads.clone().flat_map(own) {
            word64(mine, i).store(word_of(my_seed, now, i), Ordering::Relaxed);
        }
        if is_first {
            channel.relaxed_signal();
            if !channel.relaxed_wait(max_spin) {
                fail();
            }
        }
        syncer.sync(blocks, -1);
        if is_first {
            word64(round, 0).store(now + 1, Ordering::Relaxed);
        }
        threads.clone().for_each(|thread| channel.put(words * 8, 0, words * 8, thread, n));
        if arrivals.arrive(blocks) {
            channel.signal();
            if !channel.wait(max_spin) {
                fail();
            }
        }
        syncer.sync(blocks, -1);
        let wrong = threads
            .flat_map(own)
            .filter(|i| word64(mine, words + i).load(Ordering::Relaxed) != word_of(peer_seed, now, *i))
            .count();
        word64(mismatches, 0).fetch_add(wrong as u64, Ordering::Relaxed);
    }
}
