//! Of `packet_ping_pong.cu`. Safety: see the module above.

use mscclpp::{
    DevicePtr, LL8Packet, LL16Packet, MemoryChannelHandle, Packet,
    host::{self, HostBlock, HostKernel},
};

use crate::packet_pingpong::{Seeds, message};

pub(crate) const PACKET_PING_PONG: &[HostKernel] = &[
    HostKernel { name: "ll8_ping_pong", run: ping_pong::<LL8Packet> },
    HostKernel { name: "ll16_ping_pong", run: ping_pong::<LL16Packet> },
];

unsafe fn ping_pong<P: Packet>(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    let (channel, bytes, incoming, iters, first, seeds) = unsafe {
        (
            block.arg::<MemoryChannelHandle>(0),
            block.arg::<u64>(1),
            block.arg::<u64>(2),
            block.arg::<i32>(3),
            block.arg::<i32>(4) != 0,
            block.arg::<Seeds>(5),
        )
    };
    // SAFETY: see the module above.
    let (rounds, mismatches, failed) =
        unsafe { (block.arg::<DevicePtr>(6), block.arg::<DevicePtr>(7), block.arg::<DevicePtr>(8)) };
    // SAFETY: see the module above: a word of device memory that only this kernel uses now.
    let start = unsafe { rounds.as_mut_ptr::<u64>().read() };
    let threads = block.block_dim()[0];
    let mine = DevicePtr::from_ptr(channel.src);

    // The threads of a phase do not wait for each other: what one waits for, the peer's threads send in one phase too.
    let send = |round: u64| {
        // SAFETY: see the module above: the message is inside the channel's memory.
        unsafe { host::write(mine, &message(seeds.mine, round, bytes, P::PAYLOAD)) };
        block.threads().for_each(|thread| {
            // SAFETY: as above; the packets are inside the peer's packet buffer.
            unsafe { channel.put_packets::<P>(0, 0, bytes, thread, threads, round as u32) };
        });
    };
    let receive = |round: u64| {
        let came = block.threads().all(|thread| {
            // SAFETY: as above; the packets are inside this side's packet buffer.
            unsafe { channel.unpack_packets::<P>(0, incoming, bytes, thread, threads, round as u32, -1) }
        });
        let mut got = vec![0; bytes as usize];
        // SAFETY: as above.
        unsafe { host::read(mine.add(incoming), &mut got) };
        let expected = message(seeds.peers, round, bytes, P::PAYLOAD);
        let element = P::PAYLOAD as usize;
        let wrong =
            got.chunks(element).zip(expected.chunks(element)).filter(|(got, expected)| got != expected);
        (came, wrong.count() as u64)
    };
    let mut wrong = 0;
    for i in 0..iters.unsigned_abs() {
        let round = start + u64::from(i);
        if first {
            send(round);
        }
        let (came, mismatches) = receive(round);
        if !came {
            // SAFETY: see the module above: four bytes of device memory that only this kernel writes.
            unsafe { failed.as_mut_ptr::<u32>().write(i + 1) };
            return;
        }
        wrong += mismatches;
        if !first {
            send(round);
        }
    }
    // SAFETY: see the module above: words of device memory that only this kernel uses now.
    unsafe {
        rounds.as_mut_ptr::<u64>().write(start + u64::from(iters.unsigned_abs()));
        let mismatches = mismatches.as_mut_ptr::<u64>();
        mismatches.write(mismatches.read() + wrong);
    }
}
