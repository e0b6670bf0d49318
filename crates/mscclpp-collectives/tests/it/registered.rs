//! Registered memory: results that peers write in place, beside memory that is not registered, in graphs, and when it goes.

use std::{thread, time::Duration};

use crate::support::{Told, builder, ranks, received, sent, slice, zeros};
use mscclpp::{ErrorKind, Gpu};
use mscclpp_collectives::{Collectives, DeviceSlice, Kind, Protocol, Request, Selection};
use mscclpp_test_support::Random;

const DIRECT: Selection = Selection { protocol: Protocol::Direct, two_steps: false, blocks: 2, threads: 64 };
const BULK: Selection = Selection { protocol: Protocol::Bulk, threads: 128, ..DIRECT };

/// Many more chunks than a ring has places, on ranks of which some have registered what they give, and others not.
#[test]
fn ranks_with_and_without_registered_memory_meet() {
    const PART: usize = 30_000;
    let seed = Random::new().word();
    ranks(4, |comm, gpu| {
        let told = Told::new(DIRECT);
        let collectives =
            builder(comm, gpu).scratch(2 << 20).selector(told.clone()).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (rank, mut random) = (collectives.rank(), Random::with_seed(seed));
        let [shared, plain] = [(); 2].map(|()| zeros::<u32>(gpu, 4 * PART + 8));
        let _registered = collectives.register(shared.buffer()).expect("a registration");
        for round in 0..12 {
            let who = random.of(0..=15);
            let memory = if who >> rank & 1 == 1 { &shared } else { &plain };
            // Four words are 16 bytes: other offsets cannot be written directly.
            let offset = random.of(0..=8) as usize;
            let recv = memory.slice(offset..offset + 4 * PART).unwrap();
            let send = slice(gpu, &sent(rank, 4, PART, round));
            let counted = [1 + random.of(0..=2) as u32, 1, 3];
            let protocol = if round % 3 == 0 { DIRECT } else { BULK };
            told.tell(Selection { blocks: counted[0], ..protocol });
            if round % 2 == 0 {
                collectives.all_to_all(&send, &recv, &stream).unwrap();
            } else {
                let counts = [PART as u64; 4];
                collectives.all_to_all_v(&send, &counts, &recv, &counts, &stream).unwrap();
            }
            collectives.synchronize(&stream).unwrap();
            assert!(
                recv.read().unwrap() == received(rank, 4, PART, round),
                "round {round}, rank {rank}, {who:#b}"
            );
        }
    });
}

/// D1: what a rank does with its memory before its call is not disturbed.
#[test]
fn nobody_writes_into_memory_before_its_rank_calls() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(DIRECT)).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let numbers = slice(gpu, &[7u64; 4000]);
        let _registered = collectives.register(numbers.buffer()).expect("a registration");
        for round in 0..4 {
            if collectives.rank() == 0 {
                numbers.write(&[round; 4000]).unwrap();
                collectives.broadcast(&numbers, 0, &stream).unwrap();
            } else {
                // Rank 0 has every chance to write too early.
                thread::sleep(Duration::from_millis(20));
                assert!(
                    numbers.read().unwrap().iter().all(|number| *number == if round == 0 { 7 } else { 70 })
                );
                collectives.broadcast(&numbers, 0, &stream).unwrap();
            }
            collectives.synchronize(&stream).unwrap();
            assert!(numbers.read().unwrap().iter().all(|number| *number == round));
            if collectives.rank() == 1 {
                numbers.write(&[70; 4000]).unwrap();
            }
        }
    });
}

/// Captured calls go on with what they were captured with, whatever is dropped, and take turns with eager ones.
#[test]
fn graphs_keep_what_they_use() {
    const PART: usize = 5000;
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(DIRECT)).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (send, recv) = (zeros::<u32>(gpu, 3 * PART), zeros::<u32>(gpu, 3 * PART));
        let registered = collectives.register(recv.buffer()).expect("a registration");
        stream.begin_capture().unwrap();
        collectives.all_to_all(&send, &recv, &stream).unwrap();
        collectives.all_to_all(&send, &recv, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        let mut registered = Some(registered);
        let mut own = Random::with_seed(seed ^ rank as u64);
        for round in 0..15 {
            if round == 5 {
                collectives.deregister(registered.take().unwrap()).expect("it is registered");
            }
            if round == 10 {
                // Another memory under way, and the old one in the graph alone.
                registered = Some(collectives.register(send.buffer()).expect("a registration"));
            }
            send.write(&sent(rank, 3, PART, round)).unwrap();
            recv.write(&vec![0; 3 * PART]).unwrap();
            thread::sleep(Duration::from_micros(own.of(0..=2000)));
            if round % 3 == 1 {
                collectives.all_to_all(&send, &recv, &stream).unwrap();
            } else {
                // SAFETY: what was captured keeps its memory.
                unsafe { graph.launch(&stream).unwrap() };
            }
            collectives.synchronize(&stream).unwrap();
            assert!(recv.read().unwrap() == received(rank, 3, PART, round), "round {round}, rank {rank}");
        }
    });
}

#[test]
fn registrations_are_dropped_in_any_order() {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let protocol = || protocol_of(&collectives);
        assert_eq!(protocol(), Protocol::Simple);
        let recv = zeros::<u32>(gpu, 3 * 4000);
        let mut registered = Some(collectives.register(recv.buffer()).expect("a registration"));
        let check = |round: u32| {
            let send = slice(gpu, &sent(rank, 3, 4000, round));
            collectives.all_to_all(&send, &recv, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            assert!(recv.read().unwrap() == received(rank, 3, 4000, round), "{round}");
        };
        check(1);
        // One rank drops its own: the others go on with theirs, and all choose alike.
        if rank == 1 {
            registered = None;
        }
        check(2);
        assert_eq!(protocol(), Protocol::Direct);
        let other = zeros::<u8>(gpu, 100);
        let second = collectives.register(other.buffer()).expect("a registration");
        collectives.deregister(second).expect("it is registered");
        assert_eq!(protocol(), Protocol::Direct);
        check(3);
        drop(registered);
        // What all have dropped goes with the next call.
        let second = collectives.register(other.buffer()).expect("a registration");
        collectives.deregister(second).expect("it is registered");
        assert_eq!(protocol(), Protocol::Simple);
        check(4);
    });
}

/// The protocol of a message that is too large for LL16 and LL128.
fn protocol_of(collectives: &Collectives) -> Protocol {
    let request = Request {
        kind: Kind::AllGather,
        send: mscclpp::DevicePtr(16),
        recv: mscclpp::DevicePtr(16),
        count: 1 << 28,
        data_type: mscclpp_collectives::DataType::U8,
    };
    collectives.selection(&request).expect("a selection").expect("a kernel").protocol
}

#[test]
fn what_cannot_be_registered_is_refused_on_all_ranks() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let numbers = zeros::<f32>(gpu, 3000);
        let refused = |gpu: &Gpu, text: &str| {
            let memory: DeviceSlice<u8> = zeros(gpu, 100);
            let error = collectives.register(memory.buffer()).expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error:?}");
            assert!(error.to_string().contains(text), "{error}");
        };
        if rank == 0 {
            stream.begin_capture().unwrap();
            collectives.broadcast(&numbers, 0, &stream).unwrap();
        }
        refused(gpu, ["register() while a stream is being captured", "rank 0 could not"][rank]);
        if rank == 0 {
            stream.end_capture().unwrap();
        }
        let devices = gpu.platform().device_count().unwrap();
        if devices > 2 {
            let other = comm.context().gpu(2).unwrap();
            refused(if rank == 0 { gpu } else { &other }, ["rank 1 could not", "memory of"][rank]);
        }
        // All of it left no trace.
        assert_eq!(protocol_of(&collectives), Protocol::Simple);
        let _registered = collectives.register(numbers.buffer()).expect("a registration");
        collectives.broadcast(&numbers, 1, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
    });
}

/// Two threads of each rank, of which one splits and the other registers; and then two that register with two collectives.
#[test]
fn threads_that_split_and_register_do_not_read_each_others_words() {
    ranks(3, |comm, gpu| {
        let [one, other] =
            [(); 2].map(|()| builder(comm, gpu).scratch(1 << 20).connect().expect("collectives"));
        let rank = one.rank();
        let register = |collectives: &Collectives| {
            for round in 0..20 {
                let memory = zeros::<u8>(gpu, 1000 + 100 * round);
                let registered = collectives.register(memory.buffer()).expect("a registration");
                collectives.deregister(registered).expect("it is registered");
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20 {
                    let color = u32::from(rank == round % 3);
                    let group = one.split(Some(color), -(rank as i32)).expect("a split").expect("a group");
                    assert_eq!(group.n_ranks(), if color == 1 { 1 } else { 2 }, "{round}");
                }
            });
            scope.spawn(|| register(&one));
        });
        thread::scope(|scope| {
            scope.spawn(|| register(&one));
            scope.spawn(|| register(&other));
        });
    });
}

#[test]
fn an_abort_ends_direct_calls() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).selector(Told::new(DIRECT)).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let numbers = zeros::<f64>(gpu, 2000);
        let _registered = collectives.register(numbers.buffer()).expect("a registration");
        if collectives.rank() == 0 {
            collectives.all_gather(&numbers.slice(0..1000).unwrap(), &numbers, &stream).unwrap();
            collectives.abort("enough");
            let error = collectives.synchronize(&stream).expect_err("it was aborted");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error:?}");
        }
        comm.bootstrap().barrier().unwrap();
    });
}
