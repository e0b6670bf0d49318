//! The rules of a communicator: the order of calls, sharing, mistakes and failures. Ranks are threads of this process.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    LIMIT, connect_all, device_of, endpoint_of,
    kernels::{Outcome, Side},
    platform, ranks,
};
use mscclpp::{Error, ErrorKind, Report, errors::BootstrapError, prelude::*};
use mscclpp_test_support::start_waiting;

/// A registered memory that is recognised by its size.
fn memory(comm: &Communicator, size: u64) -> RegisteredMemory {
    let gpu = comm.context().gpu(device_of(comm.bootstrap().rank())).unwrap();
    comm.register_buffer(&gpu.allocate(size).unwrap(), Transport::CUDA_IPC).unwrap()
}

fn peer_of(comm: &Communicator) -> usize {
    1 - comm.bootstrap().rank()
}

#[test]
fn every_rank_connects_with_every_rank_and_itself_and_signals_get_through() {
    for n in [1, 2, 3, 8] {
        ranks(n, |comm| {
            let rank = comm.bootstrap().rank();
            let semaphores = connect_all(&comm).unwrap();
            let channels: Vec<_> = semaphores.iter().map(|s| BaseMemoryChannel::new(s).unwrap()).collect();
            let mut side = Side::new(&comm.context().gpu(device_of(rank)).unwrap()).unwrap();
            for (peer, channel) in channels.iter().enumerate() {
                assert_eq!(channel.semaphore().connection().label(), format!("rank {peer}"));
                side.signal(channel, (10 * rank + peer) as i32 + 1);
            }
            side.finish();
            comm.bootstrap().barrier().unwrap();
            for (peer, channel) in channels.iter().enumerate() {
                for _ in 0..10 * peer + rank + 1 {
                    assert_eq!(side.poll_once(channel), Outcome::Signalled, "{rank} from {peer}");
                }
                assert_eq!(side.poll_once(channel), Outcome::NotSignalled);
            }
            comm.bootstrap().barrier().unwrap();
        });
    }
}

#[test]
fn ranks_settle_with_those_that_have_made_their_side_and_with_no_others() {
    let made = [(); 3].map(|()| AtomicBool::new(false));
    let made = Arc::new(made);
    ranks(3, move |comm| {
        let rank = comm.bootstrap().rank();
        // Rank 2 is no rank's peer, and calls nothing.
        if rank < 2 {
            thread::sleep(Duration::from_millis(50 * rank as u64));
            made[rank].store(true, Ordering::Release);
            comm.settle([0, 1]).unwrap();
            assert!(made[1 - rank].load(Ordering::Acquire), "rank {rank} was too early");
            comm.settle([1 - rank]).unwrap();
        }
    });
}

/// A rank was not waited for long enough in the first call. The message that it sent then does not count in the second
/// call.
#[test]
fn who_came_late_once_is_waited_for_the_next_time() {
    let made = Arc::new(AtomicBool::new(false));
    ranks(2, move |comm| {
        if comm.bootstrap().rank() == 0 {
            comm.settle([1]).unwrap();
            comm.bootstrap().send(&[], 1, 7).unwrap();
            comm.settle([1]).unwrap();
            assert!(made.load(Ordering::Acquire), "rank 0 was too early");
        } else {
            comm.bootstrap().recv(0, 7).unwrap();
            comm.settle([0]).unwrap();
            thread::sleep(Duration::from_millis(300));
            made.store(true, Ordering::Release);
            comm.settle([0]).unwrap();
        }
    });
}

#[test]
fn of_several_places_both_sides_choose_the_same() {
    // Devices behind the fake of HIP are simulated, and the places are timed all the same.
    let most = if platform() == Platform::Hip { 3 } else { 16 };
    for places in [1, 5.min(most), most] {
        ranks(2, |comm| {
            let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
            let connection = comm.connect(endpoint_of(rank), peer, 3).unwrap().wait().unwrap();
            assert_eq!(connection.is_within_a_device(), device_of(0) == device_of(1));
            let semaphore = comm.build_fastest_semaphore(&connection, places).unwrap();
            let channel = BaseMemoryChannel::new(&semaphore).unwrap();
            let mut side = Side::new(&comm.context().gpu(device_of(rank)).unwrap()).unwrap();
            side.signal(&channel, 7);
            side.finish();
            comm.bootstrap().barrier().unwrap();
            for _ in 0..7 {
                assert_eq!(side.poll_once(&channel), Outcome::Signalled);
            }
            assert_eq!(side.poll_once(&channel), Outcome::NotSignalled, "no signal is left of the trial");
            // The calls that follow still match.
            comm.build_semaphore(&connection).unwrap().wait().unwrap();
            comm.bootstrap().barrier().unwrap();
        });
    }
}

#[test]
fn of_different_numbers_of_places_none_is_chosen() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let connection = comm.connect(endpoint_of(0), peer, 0).unwrap().wait().unwrap();
        assert!(connection.is_within_a_device(), "both are rank 0's device");
        let none = comm.build_fastest_semaphore(&connection, 0).unwrap_err();
        assert!(none.to_string().contains("0 places; it can be 1 to 64"), "{none}");
        let alone = comm.build_fastest_semaphore_with(&connection, rank, 0, 2).unwrap_err();
        assert!(alone.to_string().contains("to itself"), "{alone}");
        let error = comm.build_fastest_semaphore(&connection, 2 + rank).unwrap_err();
        assert!(matches!(error, Error::Exchange { what: "build_fastest_semaphore", .. }), "{error}");
        let text = Report(&error).to_string();
        assert!(text.contains(&format!("asks for {} places", 2 + peer)), "{text}");
        // The calls that follow still match.
        comm.build_semaphore(&connection).unwrap().wait().unwrap();
        comm.bootstrap().barrier().unwrap();
    });
}

/// One side lets the devices choose a place, and the other builds a single semaphore.
#[test]
fn one_semaphore_where_several_are_due_is_named_on_both_sides() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let connection = comm.connect(endpoint_of(rank), peer, 0).unwrap().wait().unwrap();
        let (error, due) = if rank == 0 {
            let error = comm.build_fastest_semaphore(&connection, 3).unwrap_err();
            (error, "a semaphore stub came where a list of semaphore stubs was due")
        } else {
            let error = comm.build_semaphore(&connection).unwrap().wait().unwrap_err();
            (error, "a list of semaphore stubs came where a semaphore stub was due")
        };
        let text = Report(&error).to_string();
        assert!(text.contains(due), "{text}");
        comm.bootstrap().barrier().unwrap();
    });
}

/// Both sides report the reason, and their later calls match.
#[test]
fn over_what_kernels_cannot_signal_no_place_is_chosen() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let endpoint = EndpointConfig::new(Transport::ETHERNET, Device::gpu(device_of(rank)));
        let connection = comm.connect(endpoint, peer, 0).unwrap().wait().unwrap();
        let semaphore = comm.build_semaphore(&connection).unwrap().wait().unwrap();
        let reason = BaseMemoryChannel::new(&semaphore).unwrap_err().to_string();
        let error = comm.build_fastest_semaphore(&connection, 3).unwrap_err();
        assert_eq!(error.to_string(), reason);
        comm.build_semaphore(&connection).unwrap().wait().unwrap();
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_rank_sends_itself_memory() {
    let alone = || Arc::new(LocalBootstrap::group(1).remove(0));
    let mut comms = vec![Communicator::with_context(alone(), Context::on(platform()))];
    // The loop also uses the first device that `Communicator::new` finds, if there is one.
    comms.extend(Some(Communicator::new(alone())).filter(|comm| comm.context().gpu(0).is_ok()));
    for comm in comms {
        let gpu = comm.context().gpu(0).unwrap();
        let buffer = gpu.allocate(4096).unwrap();
        // SAFETY: the buffer, which has these bytes, outlives the registration.
        let part = unsafe { comm.register_memory(buffer.ptr(), 1000, Transport::CUDA_IPC) }.unwrap();
        comm.send_memory(&part, 0, 5).unwrap();
        let received = comm.recv_memory(0, 5).unwrap().wait().unwrap();
        assert_eq!(received.size(), 1000);
        buffer.write(0, b"to oneself").unwrap();
        let connection = comm.connect(endpoint_of(0), 0, 5).unwrap().wait().unwrap();
        connection.write(&received, 990, &part, 0, 10).unwrap();
        connection.flush(LIMIT).unwrap();
        let mut there = [0; 10];
        buffer.read(990, &mut there).unwrap();
        assert_eq!(&there, b"to oneself");
    }
}

#[test]
fn calls_match_in_their_order_for_each_peer_and_tag() {
    ranks(2, |comm| {
        let peer = peer_of(&comm);
        let kept: Vec<_> = [100, 200, 300, 400].map(|size| memory(&comm, size)).into();
        // Two tags, interleaved.
        for (i, tag) in [(0, 7), (2, 8), (1, 7), (3, 8)] {
            comm.send_memory(&kept[i], peer, tag).unwrap();
        }
        let [late8, first7, second7] = [
            (comm.recv_memory(peer, 8).unwrap(), comm.recv_memory(peer, 8).unwrap()).1,
            comm.recv_memory(peer, 7).unwrap(),
            comm.recv_memory(peer, 7).unwrap(),
        ];
        // Later items first; earlier ones are completed on the way.
        assert_eq!(second7.wait().unwrap().size(), 200);
        assert_eq!(first7.wait_timeout(Duration::ZERO).unwrap().size(), 100, "it is there already");
        assert_eq!(late8.wait().unwrap().size(), 400, "the dropped one before it has taken the 300");
        assert_eq!(first7.wait().unwrap().size(), 100, "again");
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn connections_memories_and_semaphores_share_one_order() {
    ranks(2, |comm| {
        let peer = peer_of(&comm);
        let config = endpoint_of(comm.bootstrap().rank());
        let own = memory(&comm, 64);
        let connection = comm.connect(config.clone(), peer, 3).unwrap();
        comm.send_memory(&own, peer, 3).unwrap();
        let received = comm.recv_memory(peer, 3).unwrap();
        let unwanted = comm.connect(config, peer, 3).unwrap();
        drop(unwanted);
        let connection = connection.wait().unwrap();
        let semaphore = comm.build_semaphore(&connection).unwrap();
        semaphore.wait().unwrap();
        assert_eq!(received.wait_timeout(Duration::ZERO).unwrap().size(), 64);
        assert_eq!((comm.remote_rank_of(&connection).unwrap(), comm.tag_of(&connection).unwrap()), (peer, 3));
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_pending_can_be_cloned_and_waited_for_by_many_threads() {
    ranks(2, |comm| {
        let peer = peer_of(&comm);
        let pending: Vec<_> = (0..4).map(|_| comm.recv_memory(peer, 0).unwrap()).collect();
        thread::scope(|scope| {
            for i in [3, 1, 2, 0, 1, 3] {
                let pending = pending[i].clone();
                start_waiting(scope, move || assert_eq!(pending.wait().unwrap().size(), 10 + i as u64));
            }
            // No rank sends before all threads of the other rank wait, too.
            comm.bootstrap().barrier().unwrap();
            for i in 0..4 {
                comm.send_memory(&memory(&comm, 10 + i), peer, 0).unwrap();
            }
        });
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_thread_is_not_kept_by_waits_for_later_items() {
    ranks(2, |comm| {
        let peer = peer_of(&comm);
        let (first, second) = (comm.recv_memory(peer, 0).unwrap(), comm.recv_memory(peer, 0).unwrap());
        thread::scope(|scope| {
            let later = start_waiting(scope, || second.wait().unwrap().size());
            // Neither sends before the other's thread waits.
            comm.bootstrap().barrier().unwrap();
            comm.send_memory(&memory(&comm, 1), peer, 0).unwrap();
            assert_eq!(first.wait().unwrap().size(), 1, "while another thread waits for the second");
            comm.bootstrap().barrier().unwrap();
            comm.send_memory(&memory(&comm, 2), peer, 0).unwrap();
            assert_eq!(later.join().unwrap(), 2);
        });
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_wait_that_timed_out_can_be_repeated() {
    ranks(2, |comm| {
        let peer = peer_of(&comm);
        let pending = comm.recv_memory(peer, 5).unwrap();
        let error = pending.wait_timeout(Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(
            error.to_string().contains(&format!("rank {peer}")) && error.to_string().contains("tag 5"),
            "{error}"
        );
        comm.bootstrap().barrier().unwrap();
        let own = memory(&comm, 77);
        comm.send_memory(&own, peer, 5).unwrap();
        assert_eq!(pending.wait().unwrap().size(), 77);
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_mismatch_names_what_came_what_was_due_and_where() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let own = memory(&comm, 8);
        comm.send_memory(&own, peer, 9).unwrap();
        comm.recv_memory(peer, 9).unwrap().wait().unwrap();
        // Rank 0 sends a memory where rank 1 expects an endpoint.
        if rank == 0 {
            comm.send_memory(&own, peer, 9).unwrap();
        } else {
            let pending = comm.connect(endpoint_of(rank), peer, 9).unwrap();
            for _ in 0..2 {
                let error = pending.wait().unwrap_err();
                assert!(matches!(error, Error::Exchange { peer: 0, tag: 9, position: 1, .. }), "{error}");
                let text = Report(&error).to_string();
                assert!(
                    text.contains("memory") && text.contains("endpoint") && text.contains("rank 0"),
                    "{text}"
                );
            }
        }
        // The calls that follow still match.
        let after = match rank {
            0 => (comm.recv_memory(peer, 9).unwrap(), comm.recv_memory(peer, 9).unwrap()).1,
            _ => comm.recv_memory(peer, 9).unwrap(),
        };
        comm.send_memory(&own, peer, 9).unwrap();
        assert_eq!(after.wait().unwrap().size(), 8);
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn semaphores_of_two_connections_exchanged_in_different_orders_are_noticed() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let connect = || comm.connect(endpoint_of(rank), peer, 0).unwrap();
        let pending = [connect(), connect()];
        let [a, b] = pending.map(|pending| pending.wait().unwrap());
        let (one, other) = if rank == 0 { (&a, &b) } else { (&b, &a) };
        let pending = [comm.build_semaphore(one).unwrap(), comm.build_semaphore(other).unwrap()];
        for pending in pending {
            let error = pending.wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            let text = Report(&error).to_string();
            assert!(text.contains("a different connection"), "{text}");
        }
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn bad_arguments_are_errors_at_the_call_and_take_no_place() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let nobody = comm.connect(endpoint_of(rank), 2, 0).unwrap_err();
        assert!(nobody.to_string().contains("no rank 2 in a job of 2"), "{nobody}");
        assert_eq!(comm.recv_memory(17, 0).unwrap_err().kind(), ErrorKind::InvalidUsage);
        let no_device = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(1000));
        assert_eq!(comm.connect(no_device, peer, 0).unwrap_err().kind(), ErrorKind::InvalidUsage);
        let connection = comm.connect(endpoint_of(rank), peer, 0).unwrap().wait().unwrap();
        let other = Communicator::with_context(Arc::clone(comm.bootstrap()), comm.context().clone());
        assert!(matches!(other.remote_rank_of(&connection), Err(Error::ForeignConnection { .. })));
        // This call needs to be told which rank is at the other end.
        let unknown = other.build_semaphore(&connection).unwrap_err();
        assert!(matches!(unknown, Error::ForeignConnection { .. }), "{unknown}");
        assert!(unknown.to_string().contains("build_semaphore_with"), "{unknown}");
        let unknown = other.build_fastest_semaphore(&connection, 2).unwrap_err();
        assert!(matches!(unknown, Error::ForeignConnection { .. }), "{unknown}");
        other.build_semaphore_with(&connection, peer, 0).unwrap().wait().unwrap();
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn an_abort_frees_waits_and_kernels_of_all_ranks() {
    // This is not the job's own barrier: an abort may overtake the news that all ranks have come.
    let all_there = Barrier::new(3);
    ranks(3, |comm| {
        let rank = comm.bootstrap().rank();
        let semaphores = connect_all(&comm).unwrap();
        // A kernel of each rank waits for the next rank, and nobody signals.
        let channel = BaseMemoryChannel::new(&semaphores[(rank + 1) % 3]).unwrap();
        let mut side = Side::new(&comm.context().gpu(device_of(rank)).unwrap()).unwrap();
        let nothing = comm.recv_memory((rank + 1) % 3, 1).unwrap();
        // No rank sets up anything while a kernel waits on the same device.
        all_there.wait();
        side.start_wait(&channel, -1);
        let started = Instant::now();
        if rank == 2 {
            comm.abort("that is enough");
        }
        assert_eq!(nothing.wait().unwrap_err().kind(), ErrorKind::Aborted);
        assert_eq!(side.outcome(), Outcome::NotSignalled);
        assert!(started.elapsed() < LIMIT);
        for error in
            [channel.semaphore().check().unwrap_err(), channel.semaphore().connection().check().unwrap_err()]
        {
            // Another rank may have closed its side before the news of the abort was here.
            let error = comm.explain(error);
            assert!(error.to_string().contains("that is enough"), "{error}");
        }
        // The failure is permanent.
        assert_eq!(comm.connect(endpoint_of(rank), 0, 0).unwrap_err().kind(), ErrorKind::Aborted);
        assert_eq!(side.wait_once(&channel, -1), Outcome::NotSignalled);
    });
}

#[test]
fn a_rank_that_panics_takes_the_others_out_of_their_kernels() {
    let outcome = thread::spawn(|| {
        ranks(3, |comm| {
            let rank = comm.bootstrap().rank();
            let semaphores = connect_all(&comm).unwrap();
            let channel = BaseMemoryChannel::new(&semaphores[(rank + 1) % 3]).unwrap();
            let mut side = Side::new(&comm.context().gpu(device_of(rank)).unwrap()).unwrap();
            comm.bootstrap().barrier().unwrap();
            if rank == 1 {
                // It is dropped first: freeing device memory may wait for the kernels of the others, which wait for this
                // rank.
                let _comm = comm;
                std::panic::panic_any("rank 1 falls over");
            }
            side.start_wait(&channel, -1);
            assert_eq!(side.outcome(), Outcome::NotSignalled);
            let error = comm.explain(channel.semaphore().check().unwrap_err());
            assert!(error.to_string().contains("rank 1"), "{error}");
        })
    });
    let panic = outcome.join().unwrap_err();
    assert_eq!(
        panic.downcast_ref::<&str>(),
        Some(&"rank 1 falls over"),
        "the others had nothing to complain about"
    );
}

#[test]
fn a_rank_that_leaves_fails_only_what_needs_it() {
    ranks(3, |comm| {
        let rank = comm.bootstrap().rank();
        if rank == 2 {
            return;
        }
        let error = comm.recv_memory(2, 0).unwrap().wait().unwrap_err();
        let closed =
            matches!(&error, Error::Bootstrap(e) if matches!(**e, BootstrapError::PeerClosed { rank: 2 }));
        assert!(closed, "{error}");
        let peer = 1 - rank;
        let connection = comm.connect(endpoint_of(rank), peer, 0).unwrap().wait().unwrap();
        comm.build_semaphore(&connection).unwrap().wait().unwrap().check().unwrap();
        comm.bootstrap().group_barrier(&[0, 1]).unwrap();
    });
}

#[test]
fn what_is_pending_does_not_need_the_communicator() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let bootstrap = Arc::clone(comm.bootstrap());
        let pending = comm.connect(endpoint_of(rank), peer, 0).unwrap();
        drop(comm);
        let connection = pending.wait().unwrap();
        connection.check().unwrap();
        assert_eq!(connection.context().platform().unwrap(), platform());
        bootstrap.barrier().unwrap();
    });
}
