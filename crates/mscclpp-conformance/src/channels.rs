//! Memory channels: whether they can be made from various memories, and what kernels move with them.
//!
//! Every unbounded wait here is launched by a thread that the case watches.

use std::{thread, time::Duration};

use mscclpp_core::{
    Error, LL8Packet, LL16Packet, LL128Packet, MemoryChannel, MemoryChannelHandle, Packet, Semaphore,
    TransportFlags,
};

use crate::{
    Cases, Setup,
    kernels::{Device, with},
    pair::{
        End, PATIENCE, Pair, SharedMemory, assert_error, assert_same, is_scheduled, join, noise,
        other_transport, rounds, travel,
    },
    semaphores::build,
};

pub(crate) const CASES: Cases = cases!["channels":
    they_exist_where_memory_is_mapped,
    bad_memories_are_refused,
];

pub(crate) const KERNEL_CASES: Cases = cases!["channels":
    put_and_get_are_exact,
    elements_are_written_and_read,
    packets_are_exact,
    packets_take_turns,
    waits_for_packets_end,
    what_cannot_be_is_refused,
    a_channel_keeps_the_mapping,
    its_own_memories_may_be_for_local_use,
];

const DATA: u64 = 8192;
const PACKETS: u64 = 32 << 10;

/// One side of a channel: its memories, and channels for packets and for copies.
struct Side {
    data: SharedMemory,
    packets: SharedMemory,
    channel: MemoryChannel,
    copies: MemoryChannel,
}

/// Makes both sides of a channel over a new semaphore.
fn sides(pair: &Pair) -> (Side, Side) {
    let (a, b) = build(&pair.ab, &pair.ba);
    let memories = |end: &End| (end.share(DATA), end.share(PACKETS));
    let (of_a, of_b) = (memories(&pair.a), memories(&pair.b));
    let channels =
        |semaphore: &Semaphore, own: &(SharedMemory, SharedMemory), theirs: &(SharedMemory, SharedMemory)| {
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

impl Side {
    fn fill(&self, bytes: &[u8]) {
        self.data.buffer.write(0, bytes).expect("writing a buffer");
    }

    fn packets(&self) -> Packets {
        let gpu = self.channel.semaphore().connection().local_gpu().expect("its endpoint is on a GPU");
        Packets { channel: self.channel.clone(), device: Device::of(gpu) }
    }

    /// Runs one copy by one block: to or from `remote` in the peer's memory, from or to `local` in this side's.
    fn copy(&self, get: bool, [remote, local]: [u64; 2], bytes: u64, n_threads: u32) {
        let handle = self.copies.device_handle();
        let args = with(handle).with(i32::from(get)).with(remote).with(local).with(bytes);
        // SAFETY: the kernel's arguments; the channel lives until the kernel has ended, and the callers' ranges are
        // inside.
        unsafe { self.packets().device.run("channel_copies", n_threads, args) };
    }
}

/// The kinds of packets, as the kernels number them.
#[derive(Clone, Copy)]
enum Kind {
    Ll8,
    Ll16,
    Ll128,
}

impl Kind {
    fn size(self) -> u64 {
        [LL8Packet::SIZE, LL16Packet::SIZE, LL128Packet::SIZE][self as usize]
    }
}

/// A channel for packets and the device that its kernels run on.
struct Packets {
    channel: MemoryChannel,
    device: Device,
}

impl Packets {
    /// Puts packets. Returns whether the call returned true in all threads.
    fn put(&self, kind: Kind, [target, origin]: [u64; 2], bytes: u64, n_threads: u32, flag: u32) -> bool {
        let args = with(self.channel.device_handle()).with(kind as i32).with(target).with(origin);
        let args = args.with(bytes).with(flag);
        // SAFETY: the kernel's arguments; the channel lives until the kernel has ended, and the callers' ranges are
        // inside.
        unsafe { self.device.run("channel_puts_packets", n_threads, args) == u64::from(n_threads) }
    }

    /// Takes packets. Returns whether the call returned true in all threads.
    fn unpack(
        &self,
        kind: Kind,
        [target, origin]: [u64; 2],
        bytes: u64,
        n_threads: u32,
        flag: u32,
        max_spins: i64,
    ) -> bool {
        let args = with(self.channel.device_handle()).with(kind as i32).with(target).with(origin);
        let args = args.with(bytes).with(flag).with(max_spins);
        // SAFETY: as in `put`.
        unsafe { self.device.run("channel_unpacks_packets", n_threads, args) == u64::from(n_threads) }
    }
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
        // The bit that kernels see must agree with the answer that the host gets.
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

/// Compares every byte of both sides after copies of many sizes by many threads.
fn put_and_get_are_exact(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let sizes = (0..40).chain([63, 64, 65, 120, 255, 1000, 4095, 4096, 4097]);
    for (i, size) in sizes.enumerate() {
        for (get, n_threads) in [(false, 1), (true, 7), (false, 64), (true, 1000)] {
            let (target, origin) = (i as u64 * 11 % 61, i as u64 * 7 % 59);
            let (ours, theirs) = (noise(DATA as usize), noise(DATA as usize));
            here.fill(&ours);
            there.fill(&theirs);
            here.copy(get, [target, origin], size, n_threads);
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
    // SAFETY: the kernel's argument; the channel lives until the kernel has ended.
    let read = unsafe { here.packets().device.run("channel_elements", 1, with(here.copies.device_handle())) };
    assert_eq!(read, 4, "elements that were read as they had been written");
    let bytes = there.data.bytes();
    assert_eq!(bytes[24..32], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(bytes[80..84], (-7i32).to_ne_bytes());
    assert_eq!(bytes[404..408], (-2.5f32).to_ne_bytes());
    assert_eq!((bytes[9], bytes[10]), (0xab, 0));
}

fn packets_are_exact(setup: &dyn Setup) {
    fn send(kind: Kind, here: &Side, there: &Side, n_threads: u32) {
        let mut flag = 0;
        for (i, size) in [0, 1, 3, 4, 5, 7, 8, 9, 119, 120, 121, 240, 1000, 4001].into_iter().enumerate() {
            for offset in (0..16).step_by(if is_scheduled() { 5 } else { 1 }) {
                flag += 1;
                let (origin, to) = (100 + offset, 200 + offset * 5 % 16);
                let target = i as u64 * kind.size();
                let (data, mut expected) = (noise(DATA as usize), noise(DATA as usize));
                here.fill(&data);
                there.fill(&expected);
                assert!(here.packets().put(kind, [target, origin], size, n_threads, flag));
                assert!(
                    there.packets().unpack(kind, [target, to], size, 96, flag, 1),
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
    send(Kind::Ll8, &here, &there, 5);
    send(Kind::Ll16, &there, &here, 64);
    if here.channel.check_lines().is_ok() && there.channel.check_lines().is_ok() {
        let (here, there) = sides(&pair);
        send(Kind::Ll128, &here, &there, 32);
    }
}

/// Sends rounds of packets in both directions at once: whoever has the answer to a round may put the next but one.
fn packets_take_turns(setup: &dyn Setup) {
    const SIZE: u64 = 40;
    fn play(kind: Kind, pair: &Pair) {
        let n_rounds = rounds(3000);
        let (here, there) = sides(pair);
        let play = |side: Side| {
            thread::spawn(move || {
                let handle = side.channel.device_handle();
                let args = with(handle).with(kind as i32).with(n_rounds as u32).with(SIZE);
                // SAFETY: the kernel's arguments; the side lives until the kernel has ended, and its memories are
                // large enough.
                unsafe { side.packets().device.run("channel_packet_turns", 32, args) }
            })
        };
        let (here, there) = (play(here), play(there));
        assert_eq!(join(here, 2 * PATIENCE, "one side of packets"), n_rounds);
        assert_eq!(join(there, 2 * PATIENCE, "the other side of packets"), n_rounds);
    }
    let pair = Pair::connect(setup);
    play(Kind::Ll8, &pair);
    play(Kind::Ll16, &pair);
    let (here, there) = sides(&pair);
    if here.channel.check_lines().is_ok() && there.channel.check_lines().is_ok() {
        play(Kind::Ll128, &pair);
    }
}

fn waits_for_packets_end(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let semaphore = there.channel.semaphore();
    for _ in 0..2 {
        assert!(!there.packets().unpack(Kind::Ll16, [0, 0], 100, 4, 1, 50));
        assert_error!(semaphore.check(), Error::DeviceWaitTimedOut { .. });
        semaphore.check().expect("reported once");
    }
    assert!(here.packets().put(Kind::Ll16, [0, 0], 100, 4, 1));
    assert!(there.packets().unpack(Kind::Ll16, [0, 0], 100, 3, 1, 50), "the wait repeated finds them");

    assert!(
        !there.packets().unpack(Kind::Ll16, [0, 0], 100, 2, 2, 50),
        "packets of the last round were taken for the next"
    );
    assert_error!(semaphore.check(), Error::DeviceWaitTimedOut { .. });

    let waiting = |side: &Side| {
        let packets = side.packets();
        thread::spawn(move || packets.unpack(Kind::Ll16, [0, 0], 100, 2, 2, -1))
    };
    let wait = waiting(&there);
    thread::sleep(Duration::from_millis(5));
    semaphore.abort("the test is over");
    assert!(!join(wait, PATIENCE, "a wait that was aborted"));
    assert!(!join(waiting(&there), PATIENCE, "a wait after the abort"));
    assert_error!(semaphore.check(), Error::Aborted { .. });

    // The peer closes its side, with everything that keeps the connection open.
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
    refused("a place between packets", here.packets().put(Kind::Ll16, [8, 0], 8, 1, 1));
    refused("taking from between packets", here.packets().unpack(Kind::Ll8, [4, 0], 8, 1, 1, -1));
    refused("lines by a part of a warp", here.packets().put(Kind::Ll128, [0, 0], 8, 31, 1));
    if here.channel.check_lines().is_err() {
        refused("lines that need not arrive whole", here.packets().put(Kind::Ll128, [0, 0], 8, 32, 1));
        refused("taking such lines", here.packets().unpack(Kind::Ll128, [0, 0], 8, 32, 1, -1));
    }
    assert_same(&there.packets.bytes(), &[0; PACKETS as usize], "the peer's packet buffer");
}

/// Makes channels of own memories that are for local use: kernels use only their addresses. Memory that the peer
/// writes into is registered for the peer as before.
fn its_own_memories_may_be_for_local_use(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (mut here, mut there) = sides(&pair);
    for (side, end) in [(&mut here, &pair.a), (&mut there, &pair.b)] {
        let local = |shared: &SharedMemory| {
            end.context.register_buffer(&shared.buffer, TransportFlags::NONE).expect("a registration")
        };
        let (data, packets) = (local(&side.data), local(&side.packets));
        let channel = |of: &MemoryChannel, packets: Option<&_>| {
            MemoryChannel::new(of.semaphore(), of.dst(), &data, packets).expect("a channel")
        };
        side.copies = channel(&side.copies, None);
        side.channel = channel(&side.channel, Some(&packets));
    }
    let (ours, theirs) = (noise(DATA as usize), noise(DATA as usize));
    here.fill(&ours);
    there.fill(&theirs);
    here.copy(false, [0, 0], 1000, 64);
    here.copy(true, [2000, 3000], 1000, 64);
    assert_same(&there.data.bytes()[..1000], &ours[..1000], "what was put");
    assert_same(&here.data.bytes()[3000..4000], &theirs[2000..3000], "what was got");
    assert!(there.packets().put(Kind::Ll16, [0, 4000], 500, 32, 1));
    assert!(here.packets().unpack(Kind::Ll16, [0, 5000], 500, 32, 1, 1), "packets that were put are there");
    assert_same(&here.data.bytes()[5000..5500], &theirs[4000..4500], "what came in packets");
}

/// Drops the peer's memory at its owner and the user's handle of it: the memory stays mapped.
fn a_channel_keeps_the_mapping(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (here, there) = sides(&pair);
    let Side { copies, data: SharedMemory { buffer, .. }, .. } = here;
    let clone = copies.clone();
    drop((copies, there.data, there.packets));
    buffer.write(0, &[7; 64]).expect("writing a buffer");
    let handle = clone.device_handle();
    let gpu = clone.semaphore().connection().local_gpu().expect("its endpoint is on a GPU");
    // SAFETY: the kernels' arguments; the channel keeps the mapping, and both memories have 64 bytes.
    unsafe {
        let device = Device::of(gpu);
        let args = |get: bool| with(handle).with(i32::from(get)).with(0u64);
        device.run("channel_copies", 1, args(false).with(0u64).with(64u64));
        device.run("channel_copies", 1, args(true).with(64u64).with(64u64));
    }
    let mut bytes = [0; 64];
    buffer.read(64, &mut bytes).expect("reading a buffer");
    assert_eq!(bytes, [7; 64]);
}
