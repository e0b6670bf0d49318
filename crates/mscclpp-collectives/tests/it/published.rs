//! Memory that each rank publishes for itself, and memory that captured calls publish. It is published late, withdrawn while
//! calls use it, freed and allocated again, and used in several graphs; and ranks leave that have published memory.

use std::{collections::VecDeque, thread, time::Duration};

mod sums;

use crate::support::{Told, builder, builder_with_lanes, ranks, ranks_alone, received, sent, slice, zeros};
use mscclpp::{ErrorKind, Gpu, Platform, gpu::Graph};
use mscclpp_collectives::{Collectives, DeviceSlice, Protocol, Published, Selection};
use mscclpp_test_support::{Random, until};

const SIMPLE: Selection = Selection { protocol: Protocol::Simple, two_steps: false, blocks: 2, threads: 64 };

/// Each rank publishes and withdraws receive memory at random, while several calls are under way at once.
#[test]
fn ranks_publish_and_withdraw_as_they_like() {
    for n in [2, 4] {
        publish_at_random(n, 60);
    }
}

#[test]
#[ignore = "takes minutes: ci/run.sh collectives"]
fn ranks_publish_and_withdraw_for_long() {
    for n in [2, 3, 5] {
        publish_at_random(n, 3000);
    }
}

fn publish_at_random(n: usize, rounds: u32) {
    let seed = Random::new().word();
    ranks(n, |comm, gpu| {
        let told = Told::new(SIMPLE);
        // The scratch is so small that a lane has more chunks than its ring has places.
        let (scratch, most) = if n == 2 { (1 << 20, 80_000) } else { (4 << 20, 12_000) };
        let builder = builder_with_lanes(comm, gpu).scratch(scratch);
        let collectives = builder.selector(told.clone()).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        let mut published: VecDeque<Published> = VecDeque::new();
        // For each call that is under way, its round, the memory that it takes data into, and the data that is expected there.
        let mut calls: Vec<(u32, DeviceSlice<u32>, Vec<u32>)> = Vec::new();
        for round in 0..rounds {
            let part = 64 + random.of(0..=most) as usize;
            let (kind, root) = (random.of(0..=4), random.of(0..=n as u64 - 1) as usize);
            let protocol = [Protocol::Simple, Protocol::SimpleByBulk][random.of(0..=1) as usize];
            told.tell(Selection { protocol, blocks: 1 + random.of(0..=2) as u32, ..SIMPLE });
            let (send, memory) = (slice(gpu, &sent(rank, n, part, round)), zeros::<u32>(gpu, n * part + 8));
            match own.of(0..=3) {
                0 => published.push_back(collectives.publish(memory.buffer()).expect("it is of this device")),
                1 => {
                    let made = collectives.publish(memory.buffer()).expect("it is of this device");
                    if own.of(0..=1) == 0 {
                        until("nobody maps it", || made.is_ready());
                    }
                    published.push_back(made);
                }
                2 => drop(published.pop_front()),
                _ => {}
            }
            // Peers write directly only at offsets that are multiples of 16 bytes, which are four words.
            let offset = own.of(0..=8) as usize;
            let recv = memory.slice(offset..offset + n * part).unwrap();
            let gathered = || (0..n).flat_map(|from| sent(from, 1, part, round)).collect();
            thread::sleep(Duration::from_micros(own.of(0..=1000)));
            let expected = match kind {
                // Some ranks make the call in place, and others do not.
                0 | 1 => {
                    let from = if own.of(0..=1) == 0 { &recv } else { &send };
                    from.write(&sent(rank, n, part, round)).unwrap();
                    collectives.all_to_all(from, &recv, &stream).unwrap();
                    received(rank, n, part, round)
                }
                2 => {
                    collectives.all_gather(&send.slice(0..part).unwrap(), &recv, &stream).unwrap();
                    gathered()
                }
                3 => {
                    let own = recv.slice(rank * part..(rank + 1) * part).unwrap();
                    own.write(&sent(rank, 1, part, round)).unwrap();
                    collectives.all_gather(&own, &recv, &stream).unwrap();
                    gathered()
                }
                // The root may be ahead of the others.
                _ => {
                    if rank == root {
                        recv.write(&sent(root, n, part, round)).unwrap();
                    }
                    collectives.broadcast(&recv, root, &stream).unwrap();
                    sent(root, n, part, round)
                }
            };
            calls.push((round, recv, expected));
            if own.of(0..=3) == 0 {
                // Calls that name this memory may be under way.
                published.clear();
            }
            if round + 1 == rounds || own.of(0..=2) == 0 {
                collectives.synchronize(&stream).unwrap();
                for (round, recv, expected) in calls.drain(..) {
                    assert!(recv.read().unwrap() == expected, "round {round}, rank {rank}");
                }
            }
        }
    });
}

/// A root waits for nobody. So it is a call ahead of ranks whose blocks have not learned yet whether its message comes directly.
#[test]
fn a_root_is_ahead_of_those_that_take_directly() {
    const LEN: usize = 4000;
    ranks(2, |comm, gpu| {
        let collectives =
            builder(comm, gpu).scratch(512 << 10).selector(Told::new(SIMPLE)).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let memory = zeros::<u32>(gpu, 100 * LEN);
        let published = collectives.publish(memory.buffer()).expect("it is of this device");
        until("nobody maps it", || published.is_ready());
        let parts: Vec<_> = (0..100).map(|i| memory.slice(i * LEN..(i + 1) * LEN).unwrap()).collect();
        for round in 0..4u32 {
            let numbers = |i: usize| sent(0, 1, LEN, round * 100 + i as u32);
            for (i, part) in parts.iter().enumerate() {
                part.write(&if rank == 0 { numbers(i) } else { vec![0; LEN] }).unwrap();
            }
            for part in &parts {
                collectives.broadcast(part, 0, &stream).unwrap();
            }
            collectives.synchronize(&stream).unwrap();
            for (i, part) in parts.iter().enumerate() {
                assert!(part.read().unwrap() == numbers(i), "round {round}, call {i}, rank {rank}");
            }
        }
    });
}

/// A captured all_to_all, and the memory that it needs.
struct Captured {
    graph: Graph,
    part: usize,
    send: DeviceSlice<u32>,
    recv: DeviceSlice<u32>,
}

impl Captured {
    fn new(collectives: &Collectives, gpu: &Gpu, pool: &DeviceSlice<u32>, at: usize, part: usize) -> Self {
        let n = collectives.n_ranks();
        let recv = pool.slice(at..at + n * part).unwrap();
        let (send, stream) = (zeros::<u32>(gpu, n * part), gpu.stream().expect("a stream"));
        stream.begin_capture().unwrap();
        collectives.all_to_all(&send, &recv, &stream).unwrap();
        collectives.all_to_all(&send, &recv, &stream).unwrap();
        Self { graph: stream.end_capture().unwrap(), part, send, recv }
    }

    fn replay(&self, collectives: &Collectives, stream: &mscclpp::Stream, round: u32) {
        let (rank, n) = (collectives.rank(), collectives.n_ranks());
        self.send.write(&sent(rank, n, self.part, round)).unwrap();
        self.recv.write(&vec![0; n * self.part]).unwrap();
        // SAFETY: this struct keeps the memory of the graph.
        unsafe { self.graph.launch(stream).unwrap() };
    }

    fn check(&self, collectives: &Collectives, round: u32) {
        let (rank, n) = (collectives.rank(), collectives.n_ranks());
        assert!(
            self.recv.read().unwrap() == received(rank, n, self.part, round),
            "round {round}, rank {rank}"
        );
    }
}

/// Two graphs take data into the same allocation. One of them is destroyed while a replay of the other one is under way.
#[test]
fn graphs_share_a_pool_and_go_one_by_one() {
    const PART: usize = 5000;
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let told = Told::new(SIMPLE);
        let collectives =
            builder(comm, gpu).scratch(2 << 20).selector(told.clone()).connect().expect("collectives");
        let (stream, mut random) = (gpu.stream().expect("a stream"), Random::with_seed(seed));
        let mut own = Random::with_seed(seed ^ 1 ^ collectives.rank() as u64);
        let pool = zeros::<u32>(gpu, 2 * 3 * PART);
        let mut graphs = [None, None];
        for round in 0..40 {
            for (at, graph) in graphs.iter_mut().enumerate() {
                told.tell(Selection { blocks: 1 + random.of(0..=2) as u32, ..SIMPLE });
                graph.get_or_insert_with(|| Captured::new(&collectives, gpu, &pool, at * 3 * PART, PART));
            }
            let which = random.of(0..=1) as usize;
            thread::sleep(Duration::from_micros(own.of(0..=3000)));
            let replayed = graphs[which].take().expect("a graph");
            replayed.replay(&collectives, &stream, round);
            if random.of(0..=2) == 0 {
                graphs[1 - which] = None;
            }
            collectives.synchronize(&stream).unwrap();
            replayed.check(&collectives, round);
            if random.of(0..=3) != 0 {
                graphs[which] = Some(replayed);
            }
        }
    });
}

/// Graphs and eager calls take data into memory that is then freed, and into other memory that may get its addresses.
#[test]
fn memory_is_freed_and_allocated_again() {
    let seed = Random::new().word();
    ranks(2, |comm, gpu| {
        let collectives =
            builder(comm, gpu).scratch(2 << 20).selector(Told::new(SIMPLE)).connect().expect("collectives");
        let (stream, mut random) = (gpu.stream().expect("a stream"), Random::with_seed(seed));
        let rank = collectives.rank();
        for round in 0..60 {
            let part = 4096 * (1 + random.of(0..=1) as usize);
            let recv = zeros::<u32>(gpu, 2 * part);
            // SAFETY: the calls that use it are complete before it is freed.
            let published = unsafe { collectives.publish_memory(recv.ptr(), 8 * part as u64) };
            let published = published.expect("memory of this device");
            if random.of(0..=1) == 0 {
                until("nobody maps it", || published.is_ready());
            }
            let captured = Captured::new(&collectives, gpu, &recv, 0, part);
            for again in 0..random.of(0..=2) as u32 {
                captured.replay(&collectives, &stream, round ^ again);
                collectives.synchronize(&stream).unwrap();
                captured.check(&collectives, round ^ again);
            }
            // The memory and the graph are dropped in any order. After that, other memory at the same addresses is not published.
            let graph_first = random.of(0..=1) == 0;
            if graph_first {
                drop(captured);
                drop(recv);
            } else {
                drop(recv);
                drop(captured);
            }
            let (send, other) = (slice(gpu, &sent(rank, 2, part, round)), zeros::<u32>(gpu, 2 * part));
            collectives.all_to_all(&send, &other, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert!(other.read().unwrap() == received(rank, 2, part, round), "round {round}, rank {rank}");
            drop(published);
        }
    });
}

/// When graphs are gone, their slots, mappings and descriptors are given back.
#[test]
fn a_thousand_captures_leave_nothing_behind() {
    const CAPTURES: usize = 1000;
    ranks_alone(2, |comm, gpu| {
        let collectives =
            builder(comm, gpu).scratch(2 << 20).selector(Told::new(SIMPLE)).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let descriptors = || std::fs::read_dir("/proc/self/fd").expect("Linux").count();
        let maps = || std::fs::read_to_string("/proc/self/maps").expect("Linux").lines().count();
        let mut before = None;
        for round in 0..CAPTURES {
            let pool = zeros::<u32>(gpu, 2 * 2048);
            let captured = Captured::new(&collectives, gpu, &pool, 0, 2048);
            if round % 50 == 0 {
                captured.replay(&collectives, &stream, round as u32);
                collectives.synchronize(&stream).unwrap();
                captured.check(&collectives, round as u32);
            }
            drop((captured, pool));
            if round + 1 == CAPTURES / 5 || round + 1 == CAPTURES {
                // The publisher works in order. So when this memory is ready, it has withdrawn all that was dropped before.
                let last = zeros::<u32>(gpu, 1024);
                let made = collectives.publish(last.buffer()).expect("it is of this device");
                until("nobody maps it", || made.is_ready());
                drop(made);
                comm.bootstrap().barrier().unwrap();
                let now = [gpu.memory_info().unwrap().free as usize / 4096, descriptors(), maps()];
                let before = before.get_or_insert(now);
                let [free, files, areas] = *before;
                // A GPU's driver takes memory of its own. On GPUs each capture has 2 MiB.
                let pages = if gpu.platform() == Platform::Sim { 64 } else { 32 << 10 };
                assert!(
                    now[0] + pages >= free && now[1] <= files + 64 && now[2] <= areas + 400,
                    "{before:?} {now:?}"
                );
                comm.bootstrap().barrier().unwrap();
            }
        }
    });
}

/// A rank that has published memory leaves while the others go on. They get an error that says so, and nothing hangs.
#[test]
fn a_rank_that_goes_takes_nobody_with_it() {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(SIMPLE)).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (send, recv) = (zeros::<u32>(gpu, 3 * 4000), zeros::<u32>(gpu, 3 * 4000));
        let published = collectives.publish(recv.buffer()).expect("it is of this device");
        until("nobody maps it", || published.is_ready());
        collectives.all_to_all(&send, &recv, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        if rank == 2 {
            // The others have published memory that this one has mapped.
            drop((published, recv, collectives));
            comm.bootstrap().barrier().unwrap();
            return;
        }
        let called = collectives.all_to_all(&send, &recv, &stream);
        let error = called.and_then(|()| collectives.synchronize(&stream)).expect_err("rank 2 has left");
        assert!(matches!(error.kind(), ErrorKind::Remote | ErrorKind::Aborted), "{error:?}");
        drop((published, recv));
        comm.bootstrap().barrier().unwrap();
    });
}

/// A rank gives up a call and drops the published memory, into which its peer may still write.
#[test]
fn an_abort_under_calls_into_published_memory() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(SIMPLE)).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let numbers = zeros::<f64>(gpu, 20_000);
        let published = collectives.publish(numbers.buffer()).expect("it is of this device");
        until("nobody maps it", || published.is_ready());
        if collectives.rank() == 0 {
            collectives.all_gather(&numbers.slice(0..10_000).unwrap(), &numbers, &stream).unwrap();
            collectives.abort("enough");
            let error = collectives.synchronize(&stream).expect_err("it was aborted");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error:?}");
            drop((published, numbers));
        }
        comm.bootstrap().barrier().unwrap();
    });
}
