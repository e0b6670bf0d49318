//! Packets through memory channels between two endpoints of one process: the same test vectors on GPUs and on simulated
//! devices, on one device and on two.
//!
//! Tests that take minutes on GPUs, and hours on simulated devices, are ignored: `cargo test --test it -- --ignored
//! packets::`.

use std::ops::RangeInclusive;

use crate::support::{
    ends::{End, Kind, PacketRounds, Seeds},
    on_each_pair, on_gpus,
    random::{Random, shape},
};
use mscclpp::{errors::CoreError, gpu::Abort, prelude::*};
use mscclpp_test_support::until;

/// The bytes around a destination that must be left alone.
const GUARD: u64 = 64;
const DATA: u64 = 64 << 10;
const PACKETS: u64 = 256 << 10;

/// A number of polls that suffices for a packet that is there, and is soon over.
const SOON: i64 = 600;

/// Messages of one kind of packets from one end to the other, each with another flag.
struct Messages<'a> {
    here: &'a End,
    there: &'a End,
    kind: Kind,
    random: Random,
    flag: u32,
}

impl Messages<'_> {
    /// Checks one message from each of 16 alignments to a random one, and one from a random one to each.
    fn check(&mut self, bytes: u64) {
        for alignment in 0..16 {
            let other = self.random.of(0..=15);
            self.send(bytes, [alignment, other]);
            self.send(bytes, [other, alignment]);
        }
    }

    fn send(&mut self, bytes: u64, [from, to]: [u64; 2]) {
        let (kind, random) = (self.kind, &mut self.random);
        let (size, payload) = kind.sizes();
        let at = GUARD + 16 * random.of(0..=200);
        let (from, to) = (at + from, at + to);
        let packets = bytes.div_ceil(payload) * size;
        let target = size * random.of(0..=(PACKETS - packets) / size);
        let (data, poison) = (random.bytes(bytes as usize), random.bytes((bytes + 2 * GUARD) as usize));
        self.here.memories.data.write(from, &data).unwrap();
        self.there.memories.data.write(to - GUARD, &poison).unwrap();
        self.flag += 1;
        let [there, here] = [(); 2].map(|()| shape(random, kind == Kind::LL128));
        self.there.start_unpack(kind, [target, to], bytes, self.flag, -1, there);
        self.here.start_put_packets(kind, [target, from], bytes, self.flag, here);
        assert_eq!((self.here.failed(), self.there.failed()), (0, 0));
        let mut got = vec![0; poison.len()];
        self.there.memories.data.read(to - GUARD, &mut got).unwrap();
        let mut expected = poison;
        expected[GUARD as usize..][..data.len()].copy_from_slice(&data);
        if let Some(at) = (0..got.len()).find(|at| got[*at] != expected[*at]) {
            let at = at as i64 - GUARD as i64;
            panic!(
                "byte {at} of {bytes} as {kind:?}, from {from} to {to}, put by {here:?}, taken by {there:?}"
            );
        }
    }
}

/// Clears the packet buffers, so that no flag of an earlier kind looks like one of the next.
fn clear(ends: &[End; 2]) {
    for end in ends {
        let packets = &end.memories.packets;
        packets.fill(0, packets.len(), 0).unwrap();
    }
}

/// Sends messages of these sizes as each kind of packets.
fn check_messages(sizes: impl Fn(&mut Random) -> Vec<u64>) {
    on_each_pair(|context, devices| {
        let ends = End::pair(context, devices, DATA, PACKETS);
        for kind in Kind::between(&ends) {
            clear(&ends);
            let [here, there] = &ends;
            let random = Random::new();
            let mut messages = Messages { here, there, kind, random, flag: 0 };
            for bytes in sizes(&mut messages.random) {
                messages.check(bytes);
            }
        }
    });
}

fn some(random: &mut Random, range: RangeInclusive<u64>, n: usize) -> Vec<u64> {
    (0..n).map(|_| random.of(range.clone())).collect()
}

#[test]
fn messages_are_exact_at_all_alignments() {
    check_messages(|random| {
        let short = if on_gpus() { (0..=20).collect() } else { some(random, 0..=20, 4) };
        let middle = some(random, 21..=4200, if on_gpus() { 130 } else { 2 });
        [short, vec![119, 120, 121], middle, some(random, 4201..=50_000, 1)].concat()
    });
}

#[test]
#[ignore = "for GPUs: minutes there, hours on simulated devices"]
fn every_size_and_every_alignment() {
    check_messages(|_| (0..=4200).collect());
}

/// Plays rounds with changing flags between both ends at once. The flags wrap around in the midst of them.
fn play(
    kinds: impl Fn(&[End]) -> Vec<Kind>,
    sizes: RangeInclusive<u64>,
    rounds: i32,
    blocks: u32,
    finished: impl Fn(&End, u64),
) {
    on_each_pair(|context, devices| {
        let ends = End::pair(context, devices, 4 << 20, 8 << 20);
        let mut random = Random::new();
        for kind in kinds(&ends) {
            clear(&ends);
            let seeds = Seeds { mine: random.word(), peers: random.word() };
            // The flags pass the largest value. Memory starts with flag 0, so that flag is left out.
            let first_flag = u32::MAX - random.of(0..=rounds.unsigned_abs().into()) as u32;
            let what = PacketRounds { kind, bytes: random.of(sizes.clone()), rounds, first_flag, seeds };
            let shape = LaunchConfig::linear(blocks, 32 * random.of(1..=8) as u32);
            println!("{rounds} rounds of {} bytes as {kind:?}, {shape:?}", what.bytes);
            ends[0].start_packet_rounds(what, -1, shape);
            ends[1].start_packet_rounds(PacketRounds { seeds: seeds.swapped(), ..what }, -1, shape);
            for end in &ends {
                finished(end, end.mismatches());
            }
        }
    });
}

fn all_is_right(end: &End, wrong: u64) {
    assert_eq!(wrong, 0, "wrong words");
    end.packets.semaphore().check().unwrap();
}

#[test]
fn flags_change_over_many_rounds() {
    let rounds = if on_gpus() { 3000 } else { 60 };
    play(Kind::between, 1..=20, rounds, 2, all_is_right);
    play(Kind::between, 1..=5000, rounds, 2, all_is_right);
    if on_gpus() {
        // Packets without a flag in each word promise nothing, so the test only asserts that it ends.
        let told = |_: &End, wrong| println!("flags apart: {wrong} of {} words came late", 1000 * rounds);
        play(|_| vec![Kind::Split], 4000..=4000, rounds, 2, told);
    }
}

#[test]
#[ignore = "for GPUs: minutes there, hours on simulated devices"]
fn a_million_rounds() {
    play(Kind::between, 1000..=1000, 1_000_000, 4, all_is_right);
    // Each thread has several packets under way at once.
    play(Kind::between, 20_000..=20_000, 1_000_000, 4, all_is_right);
}

#[test]
fn single_packets_are_taken_by_their_number() {
    on_each_pair(|context, devices| {
        let [here, there] = End::pair(context, devices, DATA, PACKETS);
        here.memories.data.write(0, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]).unwrap();
        let shape = LaunchConfig::linear(1, 32);
        here.start_put_packets(Kind::LL8, [0, 0], 16, 7, shape);
        here.finish();
        assert_eq!(there.unpack_one(Kind::LL8, 2, 7, -1), Some([3, 0]));
        assert_eq!(there.unpack_one(Kind::LL8, 2, 8, SOON), None, "another flag");
        assert_eq!(there.unpack_one(Kind::LL8, 4, 7, SOON), None, "one more than were put");
        here.start_put_packets(Kind::LL16, [1024, 0], 16, 9, shape);
        here.finish();
        assert_eq!(there.unpack_one(Kind::LL16, 1024 / 16 + 1, 9, -1), Some([3, 4]));
        let said = there.packets.semaphore().check();
        assert!(matches!(said, Err(CoreError::DeviceWaitTimedOut { .. })), "{said:?}");
    });
}

#[test]
fn a_wait_for_packets_that_timed_out_can_be_repeated() {
    on_each_pair(|context, devices| {
        let ends = End::pair(context, devices, DATA, PACKETS);
        let [here, there] = &ends;
        here.memories.data.write(0, &[0x5a; 1000]).unwrap();
        for (kind, flag) in Kind::between(&ends).into_iter().zip(1..) {
            // Each kind has other flags and other places, and no packet is there yet.
            let target = u64::from(flag) * PACKETS / 4;
            let shape = LaunchConfig::linear(2, 32);
            for _ in 0..2 {
                there.start_unpack(kind, [target, 0], 1000, flag, SOON, shape);
                assert_eq!(there.failed(), 1, "{kind:?}");
                let said = there.packets.semaphore().check();
                assert!(matches!(said, Err(CoreError::DeviceWaitTimedOut { .. })), "{said:?}");
                there.packets.semaphore().check().expect("it says so once");
            }
            here.start_put_packets(kind, [target, 0], 1000, flag, shape);
            here.finish();
            there.start_unpack(kind, [target, 0], 1000, flag, SOON, shape);
            assert_eq!(there.failed(), 0, "{kind:?}");
            there.packets.semaphore().check().unwrap();
            let mut got = [0; 1000];
            there.memories.data.read(0, &mut got).unwrap();
            assert_eq!(got, [0x5a; 1000]);
            there.memories.data.fill(0, 1000, 0).unwrap();
        }
    });
}

#[test]
fn an_abort_ends_waits_for_packets_for_ever() {
    on_each_pair(|context, devices| {
        let kinds = Kind::between(&End::pair(context, devices, DATA, PACKETS));
        for kind in kinds {
            let [here, there] = End::pair(context, devices, DATA, PACKETS);
            let shape = LaunchConfig::linear(2, 64);
            // The peer has sent whole packets of each kind, about half of those that are waited for.
            const PART: usize = 480;
            here.memories.data.write(0, &[0x5a; PART]).unwrap();
            here.start_put_packets(kind, [0, 0], PART as u64, 1, shape);
            there.start_unpack(kind, [0, 0], 1000, 1, -1, shape);
            until("the kernel has taken what has come, and waits for the rest", || {
                let mut got = [0; PART];
                there.memories.data.read(0, &mut got).unwrap();
                got == [0x5a; PART]
            });
            there.packets.semaphore().abort("the test says so");
            assert_eq!(there.failed(), 1);
            // The error proves that the waits ended by the abort, and not by themselves.
            let said = Abort::check(&there.packets).expect_err("waits ended with the abort").to_string();
            assert!(said.contains("the test says so"), "{said}");
            for _ in 0..2 {
                there.start_unpack(kind, [0, 0], 1000, 1, -1, shape);
                assert_eq!(there.failed(), 1);
                let said = there.packets.semaphore().check().unwrap_err().to_string();
                assert!(said.contains("the test says so"), "{said}");
            }
            // Packets that have come still count, and the other end is not affected.
            here.start_put_packets(kind, [0, 0], 1000, 1, shape);
            assert_eq!(here.failed(), 0);
            there.start_unpack(kind, [0, 0], 1000, 1, -1, shape);
            assert_eq!(there.failed(), 0);
            here.packets.semaphore().check().unwrap();
        }
    });
}

#[test]
fn packets_that_cannot_be_are_refused() {
    on_each_pair(|context, devices| {
        let [here, there] = End::pair(context, devices, DATA, PACKETS);
        let whole_warps = LaunchConfig::linear(1, 64);
        let refused = |what: &str, end: &End| {
            assert_eq!(end.failed(), 1, "{what}");
            let said = end.packets.semaphore().check();
            assert!(matches!(said, Err(CoreError::PacketsRefused { .. })), "{what}: {said:?}");
            end.packets.semaphore().check().expect("it says so once");
        };
        here.memories.data.fill(0, DATA, 0xff).unwrap();
        // LL128 is also refused where its lines would work.
        for kind in [Kind::LL8, Kind::LL16, Kind::LL128] {
            let (size, _) = kind.sizes();
            here.start_put_packets(kind, [size / 2, 0], 100, 1, whole_warps);
            refused("a place between packets", &here);
            there.start_unpack(kind, [size / 2, 0], 100, 1, -1, whole_warps);
            refused("taking from between packets", &there);
        }
        here.start_put_packets(Kind::LL128, [0, 0], 100, 1, LaunchConfig::linear(1, 33));
        refused("a part of a warp", &here);
        let mut packets = [0; 1024];
        there.memories.packets.read(0, &mut packets).unwrap();
        assert_eq!(packets, [0; 1024], "nothing was put");
    });
}

#[test]
fn lines_are_refused_over_memory_that_is_not_aligned_to_them() {
    on_each_pair(|context, devices| {
        let [here, _there] = End::pair(context, devices, DATA, PACKETS);
        let ptr = here.memories.packets.ptr().add(64);
        // SAFETY: the range is inside of the buffer, which outlives the registration.
        let odd = unsafe { context.register_memory(ptr, 1024, Transport::CUDA_IPC).unwrap() };
        let (semaphore, dst, src) = (here.packets.semaphore(), here.packets.dst(), here.packets.src());
        let channel = MemoryChannel::new(semaphore, dst, src, Some(&odd)).expect("fine for LL16");
        let said = channel.check_lines().unwrap_err();
        assert!(matches!(said, CoreError::PacketsRefused { .. }), "{said}");
        assert!(said.to_string().contains("aligned to 128"), "{said}");
    });
}
