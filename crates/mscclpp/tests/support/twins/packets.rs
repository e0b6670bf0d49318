//! Host twins of `packets.cu`. Of the kinds of packets they have those of the device API: what the weakened one shows
//! depends on the GPU.

use std::sync::atomic::Ordering;

use mscclpp::{
    DevicePtr, LL8Packet, LL16Packet, LL128Packet, MemoryChannelHandle, Packet,
    host::{self, HostBlock, HostKernel},
};

use super::{in_grid, word_of, word32, word64};

pub(crate) const PACKETS_TWINS: &[HostKernel] = &[
    HostKernel { name: "packets_put", run: packets_put },
    HostKernel { name: "packets_unpack", run: packets_unpack },
    HostKernel { name: "packet_unpack_one", run: packet_unpack_one },
    HostKernel { name: "packet_rounds", run: packet_rounds },
];

/// Runs `$body` with `$P` as the packet type that `$kind` stands for.
macro_rules! with_packet {
    ($kind:expr, $P:ident, $body:expr) => {
        match $kind {
            8 => {
                type $P = LL8Packet;
                $body
            }
            16 => {
                type $P = LL16Packet;
                $body
            }
            128 => {
                type $P = LL128Packet;
                $body
            }
            other => panic!("simulated devices have no packets of kind {other}"),
        }
    };
}

unsafe fn packets_put(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channel, kind): (MemoryChannelHandle, i32) = (block.arg(0), block.arg(1));
        let (target, origin, bytes, flag) = (block.arg(2), block.arg(3), block.arg(4), block.arg(5));
        let (mut threads, n) = in_grid(block);
        let done = with_packet!(kind, P, {
            threads.all(|thread| channel.put_packets::<P>(target, origin, bytes, thread, n, flag))
        });
        if !done {
            word32(block.arg(6)).store(1, Ordering::Relaxed);
        }
    }
}

unsafe fn packets_unpack(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channel, kind): (MemoryChannelHandle, i32) = (block.arg(0), block.arg(1));
        let (target, origin, bytes, flag, max_spin) =
            (block.arg(2), block.arg(3), block.arg(4), block.arg(5), block.arg(6));
        let (mut threads, n) = in_grid(block);
        let done = with_packet!(kind, P, {
            threads
                .all(|thread| channel.unpack_packets::<P>(target, origin, bytes, thread, n, flag, max_spin))
        });
        if !done {
            word32(block.arg(7)).store(1, Ordering::Relaxed);
        }
    }
}

unsafe fn packet_unpack_one(block: &HostBlock<'_>) {
    if block.block_idx()[0] != 0 {
        return;
    }
    // SAFETY: see the module.
    unsafe {
        let (channel, kind): (MemoryChannelHandle, i32) = (block.arg(0), block.arg(1));
        let (index, flag, max_spin) = (block.arg(2), block.arg(3), block.arg(4));
        let result: DevicePtr = block.arg(5);
        let got = match kind {
            8 => channel.unpack_packet::<LL8Packet>(index, flag, max_spin).map(Vec::from),
            _ => channel.unpack_packet::<LL16Packet>(index, flag, max_spin).map(Vec::from),
        };
        word32(result).store(got.is_some().into(), Ordering::Relaxed);
        host::write(result.add(4), &got.unwrap_or_default());
    }
}

unsafe fn packet_rounds(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe { with_packet!(block.arg::<i32>(1), P, rounds::<P>(block)) }
}

/// The flag of a round: counts from `first` on, and leaves 0 out.
fn flag_of(first: u32, round: u32) -> u32 {
    (1 + (u64::from(first) - 1 + u64::from(round)) % u64::from(u32::MAX)) as u32
}

unsafe fn rounds<P: Packet>(block: &HostBlock<'_>) {
    // SAFETY: see the module.
    unsafe {
        let (channel, bytes, n_rounds): (MemoryChannelHandle, u64, i32) =
            (block.arg(0), block.arg(2), block.arg(3));
        let (first_flag, my_seed, peer_seed): (u32, u64, u64) = (block.arg(4), block.arg(5), block.arg(6));
        let (max_spin, mismatches, failed): (i64, DevicePtr, DevicePtr) =
            (block.arg(7), block.arg(8), block.arg(9));
        let (index, blocks) = (u64::from(block.block_idx()[0]), u64::from(block.grid_dim()[0]));
        let (stride, packet_stride) =
            (bytes.next_multiple_of(128), P::buffer_size(bytes).next_multiple_of(128));
        let (out, incoming) = (index * stride, (blocks + index) * stride);
        let own = DevicePtr::from_ptr(channel.src);
        let message = |seed, round: u32| -> Vec<u8> {
            let words = (0..bytes.div_ceil(8)).flat_map(|i| word_of(seed, round.into(), i).to_ne_bytes());
            words.take(bytes as usize).collect()
        };
        let n = block.block_dim()[0];
        for round in 0..n_rounds.unsigned_abs() {
            let packets = (u64::from(round % 2) * blocks + index) * packet_stride;
            let flag = flag_of(first_flag, round);
            host::write(own.add(out), &message(my_seed, round));
            let put = |thread| channel.put_packets::<P>(packets, out, bytes, thread, n, flag);
            let unpack =
                |thread| channel.unpack_packets::<P>(packets, incoming, bytes, thread, n, flag, max_spin);
            if !(block.threads().all(put) && block.threads().all(unpack)) {
                word32(failed).store(round + 1, Ordering::Relaxed);
                return;
            }
            let mut got = vec![0; bytes as usize];
            host::read(own.add(incoming), &mut got);
            let expected = message(peer_seed, round);
            let wrong = got.chunks(8).zip(expected.chunks(8)).filter(|(got, expected)| got != expected);
            word64(mismatches, 0).fetch_add(wrong.count() as u64, Ordering::Relaxed);
        }
    }
}
