//! Put, get and single words through memory channels between two endpoints of one process: the same test vectors on GPUs
//! and on simulated devices, on one device and on two.
//!
//! Tests that take minutes on GPUs, and hours on simulated devices, are ignored: `cargo test --test it -- --ignored
//! memory_channels::`.

use crate::support::{
    connect_all,
    ends::{End, Memories, Promise, Seeds},
    on_each_pair, on_gpus, platform,
    random::{self, Random},
    ranks, semaphore_pair, turn,
};
use mscclpp::{errors::CoreError, prelude::*};

/// The bytes around a destination that a copy must leave alone.
const GUARD: u64 = 64;

#[test]
fn small_copies_are_exact_at_all_alignments() {
    on_each_pair(|context, devices| {
        let [here, _there] = End::pair(context, devices, 4 << 20, 4096);
        let mut random = Random::new();
        let shape = LaunchConfig::linear(8, 96);
        // Simulated devices run a part of the sizes that GPUs run completely.
        let sizes = if on_gpus() { 0..1100 } else { 0..70 };
        let long = match on_gpus() {
            true => vec![1100..1200, 4090..4200],
            false => (0..2).map(|_| random.of(70..=4200)).chain([4096]).map(|size| size..size + 1).collect(),
        };
        for range in [vec![sizes], long].concat() {
            for get in [false, true] {
                let wrong = here.sweep(range.clone(), get, random.word(), shape);
                assert_eq!(wrong, 0, "wrong bytes, sizes {range:?}, get {get}");
            }
        }
    });
}

/// A GPU would write into whatever memory lies there.
#[test]
fn a_copy_past_the_end_fails_on_simulated_devices() {
    if on_gpus() {
        return;
    }
    on_each_pair(|context, devices| {
        for (get, [target, origin], bytes) in [
            (false, [4096, 0], 1024),
            (false, [3073, 0], 1024),
            (false, [0, 4096], 1024),
            (true, [0, 4095], 16),
            (true, [4088, 0], 9),
        ] {
            let [here, there] = End::pair(context, devices, 4096, 4096);
            here.start_copy(get, [target, origin], bytes, Promise::default(), LaunchConfig::linear(2, 64));
            let error = here.stream.synchronize_timeout(crate::support::LIMIT).unwrap_err().to_string();
            assert!(error.contains("4096 bytes"), "{bytes} bytes at {target} of {origin}: {error}");
            for end in [&here, &there] {
                let mut packets = vec![0; 4096];
                end.memories.packets.read(0, &mut packets).unwrap();
                assert!(packets.iter().all(|byte| *byte == 0), "the next buffer was hit");
            }
        }
    });
}

/// Copies every size up to 4,200 bytes at every alignment of both sides, and checks every byte around.
#[test]
#[ignore = "for GPUs: minutes there, hours on simulated devices"]
fn every_size_and_every_alignment() {
    on_each_pair(|context, devices| {
        let [here, _there] = End::pair(context, devices, 4 << 20, 4096);
        let mut random = Random::new();
        for threads in [32, 256, 1024] {
            for get in [false, true] {
                let shape = LaunchConfig::linear(128, threads);
                assert_eq!(here.sweep(0..4201, get, random.word(), shape), 0, "{threads} threads, get {get}");
            }
        }
    });
}

/// Checks one copy with random offsets and a random number of threads.
fn check_copy(source: &End, target: &End, get: bool, bytes: u64, random: &mut Random) {
    let alignment = [1, 4, 8, 16][random.of(0..=3) as usize];
    let mut offset = |len: u64| random.of(GUARD..=len - GUARD - bytes) / alignment * alignment;
    let (from, to) = (offset(source.memories.data.len()), offset(target.memories.data.len()));
    let (data, poison) = (random.bytes(bytes as usize), random.bytes((bytes + 2 * GUARD) as usize));
    source.memories.data.write(from, &data).unwrap();
    target.memories.data.write(to - GUARD, &poison).unwrap();
    let shape = random::shape(random, false);
    // A caller that knows of no alignment promises nothing, which is the default.
    let promise = match alignment {
        1 => Promise::default(),
        _ => Promise { alignment: alignment as i32, remainder: !bytes.is_multiple_of(alignment) },
    };
    match get {
        false => source.start_copy(false, [to, from], bytes, promise, shape),
        true => target.start_copy(true, [to, from], bytes, promise, shape),
    }
    let by = if get { target } else { source };
    by.finish();
    let mut got = vec![0; poison.len()];
    target.memories.data.read(to - GUARD, &mut got).unwrap();
    let mut expected = poison;
    expected[GUARD as usize..][..data.len()].copy_from_slice(&data);
    if let Some(at) = (0..got.len()).find(|at| got[*at] != expected[*at]) {
        let at = at as i64 - GUARD as i64;
        panic!("byte {at} of {bytes}, from {from} to {to}, get {get}, {shape:?}");
    }
}

#[test]
fn large_copies_are_exact() {
    on_each_pair(|context, devices| {
        let len = (16 << 20) + 4096;
        let [here, there] = End::pair(context, devices, len, 4096);
        let mut random = Random::new();
        for power in 7..=24 {
            let around = [(1 << power) - 1, 1 << power, (1 << power) + 1];
            let chosen = random.of(0..=2) as usize;
            // Two devices run the whole range; simulated ones run a sample of the larger sizes.
            let sizes = match (on_gpus(), power) {
                (true, _) | (false, ..16) => &around[..],
                (false, 16..) if devices == [0, 1] => &around[chosen..=chosen],
                _ => &[],
            };
            for bytes in sizes {
                for get in [false, true] {
                    check_copy(&here, &there, get, *bytes, &mut random);
                }
            }
        }
        for _ in 0..100 {
            let (bytes, get) = (random.of(0..=5000), random.of(0..=1) == 0);
            check_copy(&there, &here, get, bytes, &mut random);
        }
    });
}

#[test]
fn kernels_write_and_read_single_words() {
    on_each_pair(|context, devices| {
        let [here, there] = End::pair(context, devices, 4096, 4096);
        for index in [0, 1, 77, 511] {
            let value = 0xfeed_0000_0000_0000 + index;
            assert_eq!(here.write_read(index, value), value);
            let mut word = [0; 8];
            there.memories.data.read(8 * index, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), value);
        }
    });
}

/// Both ends replay a round of put, signal and wait, in which they compare the data that came.
fn replay(rounds: usize, words: u64, shape: LaunchConfig) {
    on_each_pair(|context, devices| {
        let ends = End::pair(context, devices, 16 * words, 4096);
        let mut random = Random::new();
        let seeds = Seeds { mine: random.word(), peers: random.word() };
        let graphs = [
            ends[0].put_round_graph(words, seeds, shape),
            ends[1].put_round_graph(words, seeds.swapped(), shape),
        ];
        for round in 0..rounds {
            for (end, graph) in ends.iter().zip(&graphs) {
                // SAFETY: the end owns the memory and channels of the graph, and outlives the launch.
                unsafe { graph.launch(&end.stream).unwrap() };
            }
            if round % 500 == 499 || round + 1 == rounds {
                ends.iter().for_each(|end| assert_eq!(end.mismatches(), 0, "up to round {round}"));
            }
        }
        ends.iter().for_each(|end| end.copies.semaphore().check().unwrap());
    });
}

#[test]
fn rounds_of_put_signal_and_wait_are_replayed_by_a_graph() {
    let rounds = if on_gpus() { 2000 } else { 150 };
    replay(rounds, 1000, LaunchConfig::linear(3, 128));
}

#[test]
#[ignore = "for GPUs: a minute there, an hour on simulated devices"]
fn a_hundred_thousand_replays() {
    replay(100_000, 4096, LaunchConfig::linear(4, 512));
}

/// Eight ranks where there are devices for them, and each pair exchanges data at once with all other pairs.
#[test]
fn every_pair_of_ranks_at_once() {
    const WORDS: u64 = 5000;
    let n = platform().device_count().unwrap().clamp(2, 8);
    println!("{n} ranks on {}", platform());
    ranks(n, |comm| {
        let rank = comm.bootstrap().rank();
        let semaphores = connect_all(&comm).unwrap();
        let others = semaphores.iter().enumerate().filter(|(peer, _)| *peer != rank);
        let ends = End::with_each(&comm, others, 16 * WORDS, 4096).unwrap();
        comm.bootstrap().barrier().unwrap();
        let seed = |from: usize, to: usize| ((8 * from + to + 1) as u64) << 40;
        for _ in 0..20 {
            for (peer, end) in &ends {
                let seeds = Seeds { mine: seed(rank, *peer), peers: seed(*peer, rank) };
                end.start_put_round(WORDS, seeds, -1, LaunchConfig::linear(2, 256));
            }
        }
        for (peer, end) in &ends {
            assert_eq!(end.mismatches(), 0, "between {rank} and {peer}");
            end.copies.semaphore().check().unwrap();
        }
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn waits_of_a_round_can_be_bounded_and_aborted() {
    on_each_pair(|context, devices| {
        let [here, there] = End::pair(context, devices, 4096, 4096);
        let seeds = Seeds { mine: 1, peers: 2 };
        let shape = LaunchConfig::linear(2, 64);
        here.start_put_round(16, seeds, 500, shape);
        assert_eq!(here.failed(), 1, "the peer does nothing");
        let said = here.copies.semaphore().check();
        assert!(matches!(said, Err(CoreError::DeviceWaitTimedOut { .. })), "{said:?}");
        // The other end did signal.
        there.start_put_round(16, seeds.swapped(), 500, shape);
        there.finish();
        there.copies.semaphore().check().unwrap();
        there.start_put_round(16, seeds.swapped(), -1, shape);
        there.copies.semaphore().abort("the test says so");
        assert_eq!(there.failed(), 2);
        let said = there.copies.semaphore().check().unwrap_err().to_string();
        assert!(said.contains("the test says so"), "{said}");
    });
}

#[test]
fn a_channel_keeps_what_it_needs() {
    let _turn = turn();
    let context = Context::on(platform());
    let [here, there] = End::pair(&context, [0, 0], 4096, 4096);
    let channel = here.copies.clone();
    let End { memories, .. } = there;
    let Memories { data, packets, registered } = memories;
    drop((here, packets, registered, context));
    // The owner has withdrawn its memory; the mapping stays until the channel is dropped.
    assert_eq!(channel.dst().size(), 4096);
    assert!(channel.src().data().is_some() && channel.packet_buffer().is_none());
    drop(data);
    let gpu = platform().gpu(0).unwrap();
    assert_eq!(channel.semaphore().connection().local_device(), Device::gpu(gpu.id()));
}

#[test]
fn bad_memories_are_refused_with_a_reason() {
    let _turn = turn();
    let context = Context::on(platform());
    let [semaphore, _other] = semaphore_pair(&context, [0, 0]).unwrap();
    let gpu = context.gpu(0).unwrap();
    let buffer = gpu.allocate(4096).unwrap();
    let whole = context.register_buffer(&buffer, Transport::CUDA_IPC).unwrap();
    // SAFETY: the range is inside of `buffer`, which outlives the registration.
    let odd = unsafe { context.register_memory(buffer.ptr().add(8), 64, Transport::CUDA_IPC).unwrap() };
    let refused = |what: &str, channel: Result<MemoryChannel, CoreError>, says: &str| {
        let error = channel.expect_err(what);
        assert!(matches!(error, CoreError::InvalidArgument(_)), "{what}: {error}");
        assert!(error.to_string().contains(says), "{what}: {error}");
    };
    let channel = |dst, src, packets| MemoryChannel::new(&semaphore, dst, src, packets);
    let theirs = RegisteredMemory::deserialize(&whole.serialize().unwrap()).unwrap();
    refused("a peer's source", channel(&whole, &theirs, None), "source memory");
    refused("a peer's packet buffer", channel(&whole, &whole, Some(&theirs)), "packet buffer");
    refused("an odd packet buffer", channel(&whole, &whole, Some(&odd)), "multiple of 16");
    refused("an odd packet buffer of the peer", channel(&odd, &whole, Some(&whole)), "multiple of 16");
    channel(&odd, &odd, None).expect("copies take any address").check_lines().expect_err("lines do not");
    if platform().device_count().unwrap() > 1 {
        let elsewhere = context.gpu(1).unwrap().allocate(4096).unwrap();
        let elsewhere = context.register_buffer(&elsewhere, Transport::CUDA_IPC).unwrap();
        refused("a source on another device", channel(&whole, &elsewhere, None), "same device");
    }
}
