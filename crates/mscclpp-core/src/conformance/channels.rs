//! Memory channels: which can be made everywhere, and what they move by host threads that take the part of kernels.
//!
//! Every unbounded wait here runs on a thread that the case watches.

use std::{thread, time::Duration};

use super::{
    Case, Setup,
    pair::{End, PATIENCE, Pair, Shared, assert_error, assert_same, join, noise, other_transport, travel},
    semaphores::build,
};
use crate::{
    Error, LL8Packet, LL16Packet, LL128Packet, MemoryChannel, MemoryChannelHandle, Packet, Semaphore,
};

pub(super) const CASES: &[(&str, Case)] = &[
    ("channels::they_exist_where_memory_is_mapped", they_exist_where_memory_is_mapped),
    ("channels::bad_memories_are_refused", bad_memories_are_refused),
];

pub(super) const HOST_CASES: &[(&str, Case)] = &[
    ("channels::put_and_get_are_exact", put_and_get_are_exact),
    ("channels::elements_are_written_and_read", elements_are_written_and_read),
    ("channels::packets_are_exact", packets_are_exact),
    ("channels::packets_take_turns", packets_take_turns),
    ("channels::waits_for_packets_end", waits_for_packets_end),
    ("channels::what_cannot_be_is_refused", what_cannot_be_is_refused),
    ("channels::a_channel_keeps_the_mapping", a_channel_keeps_the_mapping),
];

const DATA: u64 = 8192;
const PACKETS: u64 = 32 << 10;

/// One side: its memories, and channels for packets and for copies.
struct Side {
    data: Shared,
    packets: Shared,
    channel: MemoryChannel,
    copies: MemoryChannel,
}

/// Both sides of a channel over a new semaphore.
fn sides(pair: &Pair) -> (Side, Side) {
    let (a, b) = build(&pair.ab, &pair.ba);
    let memories = |end: &End| (end.share(DATA), end.share(PACKETS));
    let (of_a, of_b) = (memories(&pair.a), memories(&pair.b));
    let channels = |semaphore: &Semaphore, own: &(Shared, Shared), theirs: &(Shared, Shared)| {
        let (data, packets) = (&own.0.memory, &own.1.memory);
        [
            MemoryChannel::new(semaphore, &theirs.1.at_peer, data, Some(packets)).expect("for packets"),
            MemoryChannel::new(semaphore, &theirs.0.at_peer, data, None).expect("for copies"),
        ]
    };
    let (here, there) = (channels(&a, &of_a, &of_b), channels(&b, &of_b, &of_a));
    let side =
        |(data, packets), [channel, copies]: [MemoryChannel; 2]| Side { data, packets, channel, copies };
    (side(of_a, here), side(of_b, there))
}

// SAFETY of the `unsafe` blocks below: the handles are of channels of the Host platform, which the sides keep, and ranges
// are inside the memories.
impl Side {
    fn fill(&self, bytes: &[u8]) {
        self.data.buffer.write(0, bytes).expect("writing a buffer");
    }

    fn put<P: Packet>(&self, [target, origin]: [u64; 2], bytes: u64, n_threads: u32, flag: u32) -> bool {
        let handle = self.channel.device_handle();
        // SAFETY: see above.
        let put = |thread| unsafe { handle.put_packets::<P>(target, origin, bytes, thread, n_threads, flag) };
        (0..n_threads).all(put)
    }

    fn unpack<P: Packet>(
        &self,
        [target, origin]: [u64; 2],
        bytes: u64,
        n_threads: u32,
        flag: u32,
        max_spins: i64,
    ) -> bool {
        unpack::<P>(self.channel.device_handle(), [target, origin], bytes, n_threads, flag, max_spins)
    }
}

fn unpack<P: Packet>(
    handle: MemoryChannelHandle,
    [target, origin]: [u64; 2],
    bytes: u64,
    n_threads: u32,
    flag: u32,
    max_spins: i64,
) -> bool {
    (0..n_threads).all(|thread| {
        // SAFETY: see above.
        unsafe { handle.unpack_packets::<P>(target, origin, bytes, thread, n_threads, flag, max_spins) }
    })
}

fn they_exist_where_memory_is_mapped(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    if !setup.maps_peer_memory() {
        let (semaphore, _) = build(&pair.ab, &pair.ba);
        let (ours, theirs) = (pair.a.share(64), pair.b.share(64));
        let channel = MemoryChannel::new(&semaphore, &theirs.at_peer, &ours.memory, None);
        assert_error!(channel, Error::Unreachable { .. });
        return;
    }
    let (here, there) = sides(&pair);
    for side in [here, there] {
        let handle = side.channel.device_handle();
        assert!(!handle.dst.is_null() && handle.reserved == 0);
        assert_eq!(Some(handle.src.addr() as u64), side.data.memory.data().map(|ptr| ptr.0));
        assert_eq!(Some(handle.packet_buffer.addr() as u64), side.packets.memory.data().map(|ptr| ptr.0));
        assert!(side.copies.device_handle().packet_buffer.is_null());
        // The bit that kernels see and the answer that the host gets are one.
        match side.channel.check_lines() {
            Ok(()) => assert_eq!(handle.flags, MemoryChannelHandle::LINES_ARRIVE_WHOLE),
            Err(Error::PacketsRefused { .. }) => assert_eq!(handle.flags, 0),
            Err(other) => panic!("{other}"),
        }
        side.channel.semaphore().check().expect("nothing has happened yet");
    }
}

fn bad_memories_are_refused(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (semaphore, _) = build(&pair.ab, &pair.ba);
    let (ours, theirs) = (pair.a.share(64), pair.b.share(64));
    let channel = |dst: &_, src: &_, packets: Option<&_>| MemoryChannel::new(&semaphore, dst, src, packets);
    let good = (&theirs.at_peer, &ours.memory);
    if !setup.maps_peer_memory() {
        return assert_error!(channel(good.0, good.1, Some(good.1)), Error::Unreachable { .. });
    }
    assert_error!(channel(good.0, &travel(good.1), None), Error::InvalidArgument(_));
    assert_error!(channel(good.0, good.1, Some(good.0)), Error::InvalidArgument(_));
    let only_elsewhere = |end: &End| {
        let buffer = end.gpu.allocate(64).expect("a buffer");
        end.context.register_buffer(&buffer, other_transport(setup)).expect("a registration")
    };
    let (ours_elsewhere, theirs_elsewhere) = (only_elsewhere(&pair.a), only_elsewhere(&pair.b));
    assert_error!(channel(&travel(&theirs_elsewhere), good.1, None), Error::NotRegistered { .. });
    assert_error!(channel(good.0, &ours_elsewhere, None), Error::NotRegistered { .. });
    assert_error!(channel(good.0, good.1, Some(&ours_elsewhere)), Error::NotRegistered { .. });
    channel(good.0, good.1, Some(good.1)).expect("the good ones are still good");
}

/// Every byte of both sides after copies of many sizes by many threads.
fn put_and_get_are_exact(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let handle = here.copies.device_handle();
    let sizes = (0..40).chain([63, 64, 65, 120, 255, 1000, 4095, 4096, 4097]);
    for (i, size) in sizes.enumerate() {
        for (get, n_threads) in [(false, 1), (true, 7), (false, 64), (true, 1000)] {
            let (target, origin) = (i as u64 * 11 % 61, i as u64 * 7 % 59);
            let (ours, theirs) = (noise(DATA as usize), noise(DATA as usize));
            here.fill(&ours);
            there.fill(&theirs);
            for thread in 0..n_threads {
                // SAFETY: see above.
                unsafe {
                    match get {
                        true => handle.get(target, origin, size, thread, n_threads),
                        false => handle.put(target, origin, size, thread, n_threads),
                    }
                }
            }
            let (mut ours, mut theirs) = (ours, theirs);
            let [size, target, origin] = [size, target, origin].map(|n| n as usize);
            match get {
                true => ours[origin..][..size].copy_from_slice(&theirs[target..][..size]),
                false => theirs[target..][..size].copy_from_slice(&ours[origin..][..size]),
            }
            let what = format!("{size} bytes by {n_threads} threads, get {get}");
            assert_same(&here.data.bytes(), &ours, &what);
            assert_same(&there.data.bytes(), &theirs, &what);
        }
    }
}

fn elements_are_written_and_read(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let handle = here.copies.device_handle();
    // SAFETY: see above; elements are aligned because the memories are.
    unsafe {
        handle.write(3, 0x0102_0304_0506_0708_u64);
        handle.write(20, -7i32);
        handle.write(50, [1.5f32, -2.5]);
        handle.write(9, 0xabu8);
        assert_eq!(handle.read::<u64>(3), 0x0102_0304_0506_0708);
        assert_eq!(handle.read::<i32>(20), -7);
        assert_eq!(handle.read::<[f32; 2]>(50), [1.5, -2.5]);
    }
    let bytes = there.data.bytes();
    assert_eq!(bytes[24..32], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(bytes[80..84], (-7i32).to_ne_bytes());
    assert_eq!((bytes[9], bytes[10]), (0xab, 0));
}

fn packets_are_exact(setup: &dyn Setup) {
    fn send<P: Packet>(here: &Side, there: &Side, n_threads: u32) {
        let mut flag = 0;
        for (i, size) in [0, 1, 3, 4, 5, 7, 8, 9, 119, 120, 121, 240, 1000, 4001].into_iter().enumerate() {
            for offset in 0..16 {
                flag += 1;
                let (origin, to) = (100 + offset, 200 + offset * 5 % 16);
                let target = i as u64 * P::SIZE;
                let (data, mut expected) = (noise(DATA as usize), noise(DATA as usize));
                here.fill(&data);
                there.fill(&expected);
                assert!(here.put::<P>([target, origin], size, n_threads, flag));
                assert!(
                    there.unpack::<P>([target, to], size, 96, flag, 1),
                    "packets that were put are there"
                );
                expected[to as usize..][..size as usize]
                    .copy_from_slice(&data[origin as usize..][..size as usize]);
                assert_same(&there.data.bytes(), &expected, &format!("{size} bytes from {origin} to {to}"));
            }
        }
    }
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    send::<LL8Packet>(&here, &there, 5);
    send::<LL16Packet>(&there, &here, 64);
    if here.channel.check_lines().is_ok() && there.channel.check_lines().is_ok() {
        let (here, there) = sides(&pair);
        send::<LL128Packet>(&here, &there, 32);
    }
}

/// Rounds of packets both ways at once: whoever has the answer to a round may put the next but one.
fn packets_take_turns(setup: &dyn Setup) {
    const ROUNDS: u32 = 3000;
    const SIZE: u64 = 40;
    fn play<P: Packet + 'static>(pair: &Pair) {
        let (here, there) = sides(pair);
        let play = |side: Side| {
            thread::spawn(move || {
                for round in 1..=ROUNDS {
                    let packets = u64::from(round % 2) * 1024;
                    side.data.buffer.write(0, &[round as u8; SIZE as usize]).expect("writing a buffer");
                    assert!(side.put::<P>([packets, 0], SIZE, 32, round));
                    assert!(side.unpack::<P>([packets, 4096], SIZE, 32, round, -1));
                    let mut got = [0; SIZE as usize];
                    side.data.buffer.read(4096, &mut got).expect("reading a buffer");
                    assert_eq!(got, [round as u8; SIZE as usize], "round {round}");
                }
            })
        };
        let (here, there) = (play(here), play(there));
        join(here, 2 * PATIENCE, "one side of packets");
        join(there, 2 * PATIENCE, "the other side of packets");
    }
    let pair = Pair::connect(setup);
    play::<LL8Packet>(&pair);
    play::<LL16Packet>(&pair);
    let (here, there) = sides(&pair);
    if here.channel.check_lines().is_ok() && there.channel.check_lines().is_ok() {
        play::<LL128Packet>(&pair);
    }
}

fn waits_for_packets_end(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let semaphore = there.channel.semaphore();
    for _ in 0..2 {
        assert!(!there.unpack::<LL16Packet>([0, 0], 100, 4, 1, 50));
        assert_error!(semaphore.check(), Error::DeviceWaitTimedOut { .. });
        semaphore.check().expect("reported once");
    }
    assert!(here.put::<LL16Packet>([0, 0], 100, 4, 1));
    assert!(there.unpack::<LL16Packet>([0, 0], 100, 3, 1, 50), "the wait repeated finds them");

    let waiting = |side: &Side| {
        let handle = side.channel.device_handle();
        thread::spawn(move || unpack::<LL16Packet>(handle, [0, 0], 100, 2, 2, -1))
    };
    let wait = waiting(&there);
    thread::sleep(Duration::from_millis(5));
    assert!(!wait.is_finished(), "packets of the last round were taken for the next");
    semaphore.abort("the test is over");
    assert!(!join(wait, PATIENCE, "a wait that was aborted"));
    assert!(!join(waiting(&there), PATIENCE, "a wait after the abort"));
    assert_error!(semaphore.check(), Error::Aborted { .. });

    // The peer closes its side, with all that keeps the connection open.
    let wait = waiting(&here);
    let Pair { a: _a, b, ab: _ab, ba } = pair;
    drop((there, ba, b));
    assert!(!join(wait, PATIENCE, "a wait for a peer that is gone"));
    assert_error!(here.channel.semaphore().check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
}

fn what_cannot_be_is_refused(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let semaphore = here.channel.semaphore();
    let refused = |what: &str, done: bool| {
        assert!(!done, "{what}");
        assert_error!(semaphore.check(), Error::PacketsRefused { .. });
        semaphore.check().expect("reported once");
    };
    refused("flag 0", here.put::<LL8Packet>([0, 0], 8, 1, 0));
    refused("a place between packets", here.put::<LL16Packet>([8, 0], 8, 1, 1));
    refused("taking from between packets", here.unpack::<LL8Packet>([4, 0], 8, 1, 1, -1));
    refused("lines by a part of a warp", here.put::<LL128Packet>([0, 0], 8, 31, 1));
    if here.channel.check_lines().is_err() {
        refused("lines that need not arrive whole", here.put::<LL128Packet>([0, 0], 8, 32, 1));
        refused("taking such lines", here.unpack::<LL128Packet>([0, 0], 8, 32, 1, -1));
    }
    assert_same(&there.packets.bytes(), &[0; PACKETS as usize], "the peer's packet buffer");
}

/// The owner may drop its memory, and the user what it was told of it: what was mapped stays mapped.
fn a_channel_keeps_the_mapping(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let Side { copies, data: Shared { buffer, .. }, .. } = here;
    let clone = copies.clone();
    drop((copies, there.data, there.packets));
    buffer.write(0, &[7; 64]).expect("writing a buffer");
    let handle = clone.device_handle();
    // SAFETY: see above; the channel keeps the mapping.
    let back = unsafe {
        handle.put(0, 0, 64, 0, 1);
        handle.read::<[u8; 64]>(0)
    };
    assert_eq!(back, [7; 64]);
}
