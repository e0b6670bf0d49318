//! Memory that is registered as symmetric: copy engines bring what comes.

use std::{thread, time::Duration};

use crate::support::{Told, builder, builder_with_lanes, ranks, received, sent, slice, zeros};
use mscclpp_collectives::{DeviceSlice, Kind, Protocol, Query, Request, Selection, Selector};
use mscclpp_test_support::Random;

const ENGINES: Selection =
    Selection { protocol: Protocol::CopyEngine, two_steps: false, blocks: 2, threads: 64 };

/// Eager calls and replays by turns, in and out of place, at any offset, on ranks that come late.
#[test]
fn what_the_engines_bring_is_right() {
    const PART: usize = 7001;
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(ENGINES)).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ rank as u64));
        let memory = zeros::<u32>(gpu, 3 * PART + 8);
        let registered = collectives.register_symmetric(memory.buffer()).expect("a registration");
        let send = zeros::<u32>(gpu, 3 * PART);
        let captured = memory.slice(0..3 * PART).unwrap();
        stream.begin_capture().unwrap();
        collectives.all_to_all(&send, &captured, &stream).unwrap();
        collectives.all_to_all(&send, &captured, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        for round in 0..12 {
            let (kind, offset) = (random.of(0..=3), random.of(0..=8) as usize);
            let recv = memory.slice(offset..offset + 3 * PART).unwrap();
            memory.write(&[0; 3 * PART + 8]).unwrap();
            let numbers = sent(rank, 3, PART, round);
            send.write(&numbers).unwrap();
            let mine = &numbers[..PART];
            thread::sleep(Duration::from_micros(own.of(0..=2000)));
            let all_to_all = received(rank, 3, PART, round);
            let gathered = received(0, 3, PART, round);
            let (found, expected): (&DeviceSlice<u32>, _) = match kind {
                0 => {
                    collectives.all_to_all(&send, &recv, &stream).unwrap();
                    (&recv, all_to_all)
                }
                1 => {
                    // SAFETY: what was captured keeps its memory.
                    unsafe { graph.launch(&stream).unwrap() };
                    (&captured, all_to_all)
                }
                2 => {
                    collectives.all_gather(&send.slice(0..PART).unwrap(), &recv, &stream).unwrap();
                    (&recv, gathered)
                }
                _ => {
                    let own = recv.slice(rank * PART..(rank + 1) * PART).unwrap();
                    own.write(mine).unwrap();
                    collectives.all_gather(&own, &recv, &stream).unwrap();
                    (&recv, gathered)
                }
            };
            collectives.synchronize(&stream).unwrap();
            assert!(found.read().unwrap() == expected, "round {round}, rank {rank}, kind {kind}, {offset}");
        }
        collectives.deregister(registered).expect("it is registered");
        collectives.all_to_all(&send, &captured, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
    });
}

/// Only what the promise is about.
#[test]
fn other_calls_use_other_protocols() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(ENGINES)).connect().expect("collectives");
        let memory = zeros::<u8>(gpu, 4096 * (1 + collectives.rank()));
        let _registered = collectives.register_symmetric(memory.buffer()).expect("a registration");
        let base = memory.ptr();
        let protocol = |kind, send: u64, recv: u64, count| {
            let (send, recv) = (base.add(send), base.add(recv));
            let data_type = mscclpp_collectives::DataType::U8;
            let request = Request { kind, send, recv, count, data_type };
            collectives.selection(&request).unwrap().unwrap().protocol
        };
        let own = 1000 * collectives.rank() as u64;
        assert_eq!(protocol(Kind::AllGather, 3000, 0, 1000), Protocol::CopyEngine);
        assert_eq!(protocol(Kind::AllGather, own, 0, 1000), Protocol::CopyEngine);
        assert_eq!(protocol(Kind::AllToAll, 2000, 0, 1000), Protocol::CopyEngine);
        // Beyond the shortest, overlapping, and in place.
        assert_eq!(protocol(Kind::AllGather, 0, 2097, 1000), Protocol::Simple);
        assert_eq!(protocol(Kind::AllGather, 500, 0, 1000), Protocol::Simple);
        assert_eq!(protocol(Kind::AllToAll, 0, 0, 1000), Protocol::Simple);
        assert_eq!(protocol(Kind::AllToAll, 1000, 0, 1000), Protocol::Simple);
        assert_eq!(protocol(Kind::Broadcast { root: 0 }, 0, 2000, 1000), Protocol::Simple);
    });
}

/// C1: what a rank does with its memory before its call is not disturbed.
#[test]
fn nobody_writes_into_memory_before_its_rank_calls() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(ENGINES)).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let numbers = zeros::<u64>(gpu, 4000);
        let _registered = collectives.register_symmetric(numbers.buffer()).expect("a registration");
        for round in 1..5 {
            let send = slice(gpu, &[round; 2000]);
            numbers.write(&[70; 4000]).unwrap();
            if rank == 1 {
                thread::sleep(Duration::from_millis(20));
                assert_eq!(numbers.read().unwrap(), [70; 4000]);
            }
            collectives.all_gather(&send, &numbers, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert_eq!(numbers.read().unwrap(), [round; 4000]);
        }
    });
}

#[test]
fn all_ranks_register_alike() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let memory = zeros::<u8>(gpu, 100);
        let registered = match collectives.rank() {
            0 => collectives.register(memory.buffer()),
            _ => collectives.register_symmetric(memory.buffer()),
        };
        let error = registered.expect_err("they differ").to_string();
        assert!(error.contains("as symmetric, and rank"), "{error}");
        let _registered = collectives.register(memory.buffer()).expect("now they are alike");
    });
}

/// Engines where they are possible, and else what other memory that is registered makes possible.
#[derive(Debug)]
struct Registered(Protocol);

impl Selector for Registered {
    fn choose(&self, query: &Query) -> Selection {
        if query.possible.copy_engine { ENGINES } else { Selection { protocol: self.0, ..ENGINES } }
    }
}

/// The barriers in front of the copies and behind them.
#[test]
fn barriers_of_the_copy_engines_use_any_protocol() {
    use Protocol::{Bulk, Direct, Ll16, Ll128, SimpleByBulk};
    for protocol in [Direct, Bulk, Ll16, Ll128, SimpleByBulk] {
        ranks(2, |comm, gpu| {
            let collectives = builder_with_lanes(comm, gpu).selector(Registered(protocol)).connect();
            let collectives = collectives.expect("collectives");
            let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
            let numbers = zeros::<u64>(gpu, 4000);
            let _registered = collectives.register_symmetric(numbers.buffer()).expect("a registration");
            collectives.all_gather(&slice(gpu, &[5 + rank as u64; 2000]), &numbers, &stream).unwrap();
            collectives.barrier(&stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert_eq!(numbers.read().unwrap(), [[5; 2000], [6; 2000]].concat(), "{protocol:?}");
        });
    }
}
