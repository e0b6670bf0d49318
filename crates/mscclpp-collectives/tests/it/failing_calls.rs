//! Calls of collectives that are refused, that do not match, that are given up, or whose ranks end.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{Told, abort_ends_waits, builder, builder_with_lanes, by_nodes::on, ranks, zeros};
use mscclpp::{ErrorKind, gpu::Abort, prelude::*};
use mscclpp_collectives::{
    Collectives, CollectivesBuilder, DataType, DeviceSlice, Error, Kind, Protocol, ReduceOp, Request,
    Selection, Transfer,
};
use mscclpp_test_support::{LIMIT, Lines, until, watched};

#[test]
fn what_can_never_be_right_is_refused_and_nothing_is_done() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (four, three) = (zeros::<f32>(gpu, 4), zeros::<f32>(gpu, 3));
        let refused = |result: Result<(), Error>, text: &str| {
            let error = result.expect_err("it is wrong");
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            assert!(error.to_string().contains(text), "{error}");
        };
        refused(
            collectives.all_reduce(&four, &three, ReduceOp::Sum, &stream),
            "all_reduce: `recv` has 3 numbers instead of 4",
        );
        refused(collectives.all_gather(&four, &four, &stream), "has 4 numbers instead of 8");
        refused(
            collectives.reduce_scatter(&three, &three, ReduceOp::Sum, &stream),
            "has 3 numbers instead of 6",
        );
        refused(collectives.all_to_all(&three, &three, &stream), "cannot share evenly");
        refused(collectives.broadcast(&three, 2, &stream), "broadcast from 2 of 2 ranks");
        refused(collectives.send(&three, 9, &stream), "send to 9 of 2 ranks");
        refused(collectives.all_gather_v(&three, &four, &[3], &stream), "has 4 numbers instead of 3");
        refused(collectives.send(&three, collectives.rank(), &stream), "give both in one call");
        if collectives.rank() == 0 {
            refused(collectives.gather::<f32>(&three, None, 0, &stream), "the root, rank 0, gives `recv`");
        }
        let devices = gpu.platform().device_count().unwrap();
        if devices > 2 {
            let other = comm.context().gpu(2).unwrap();
            refused(
                collectives.all_reduce(&four, &four, ReduceOp::Sum, &other.stream().unwrap()),
                "a stream of",
            );
            let elsewhere = zeros::<f32>(&other, 4);
            refused(collectives.all_reduce(&four, &elsewhere, ReduceOp::Sum, &stream), "memory of");
        }
        let request = Request {
            kind: Kind::AllReduce(ReduceOp::PreMulSum(f64::NAN)),
            send: four.ptr(),
            recv: four.ptr(),
            count: 1,
            data_type: DataType::I32,
        };
        // SAFETY: it is refused.
        refused(unsafe { collectives.enqueue(&[request], &stream) }, "cannot be multiplied by NaN");
        // All of it left no trace.
        collectives.all_reduce(&four, &four, ReduceOp::Sum, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
    });
}

#[test]
fn ranks_that_ask_for_different_things_are_told() {
    ranks(2, |comm, gpu| {
        let blocks = 1 + comm.bootstrap().rank() as u32;
        let error = builder(comm, gpu).max_blocks(blocks).connect().expect_err("they differ");
        let (ours, theirs) = (blocks, 3 - blocks);
        let text = format!("different max_blocks: {ours} and {theirs}");
        assert!(error.to_string().contains(&text), "{error}");
        let error = builder(comm, gpu).calls_at_once(31 + blocks).connect().expect_err("33 are too many");
        assert!(error.to_string().contains("different calls_at_once"), "{error}");
        let error = Collectives::builder(comm, gpu).ranks([0, 1, 1]).connect().expect_err("twice");
        assert!(error.to_string().contains("rank 1 is named twice"), "{error}");
        let other = 1 - comm.bootstrap().rank();
        let error = Collectives::builder(comm, gpu).ranks([other]).connect().expect_err("not this one");
        assert!(error.to_string().contains("is not among the ranks"), "{error}");
        let error = builder(comm, gpu).scratch(1000).connect().expect_err("too little");
        assert!(error.to_string().contains("1000 bytes of scratch are too few"), "{error}");
    });
}

/// Kinds, counts, types, operations and roots that differ, in calls that would wait for ever or mix up numbers.
#[test]
fn calls_that_do_not_match_are_named() {
    check_mismatches(builder);
}

#[test]
fn calls_that_do_not_match_between_nodes_are_named() {
    check_mismatches(|comm, gpu| on(&[0, 1], comm, gpu));
}

fn check_mismatches(builder: impl Fn(&Communicator, &Gpu) -> CollectivesBuilder + Sync) {
    type Call = fn(&Collectives, &DeviceSlice<f32>, &DeviceSlice<u32>, &Stream) -> Result<(), Error>;
    let pairs: [(Call, Call, [&str; 2]); 5] = [
        (
            |c, x, _, s| c.all_reduce(x, x, ReduceOp::Sum, s),
            |c, x, _, s| c.broadcast(x, 1, s),
            ["all_reduce (Sum) of 3000 F32", "broadcast of 3000 F32, root 1"],
        ),
        (
            |c, x, _, s| c.all_reduce(x, x, ReduceOp::Sum, s),
            |c, x, _, s| c.all_reduce(x, x, ReduceOp::Max, s),
            ["all_reduce (Sum) of 3000 F32", "all_reduce (Max) of 3000 F32"],
        ),
        (
            |c, x, _, s| c.all_to_all(x, x, s),
            |c, _, y, s| c.all_to_all(y, y, s),
            ["all_to_all of 1500 F32", "all_to_all of 1500 U32"],
        ),
        (
            |c, x, _, s| c.broadcast(x, 0, s),
            |c, x, _, s| c.broadcast(x, 1, s),
            ["broadcast of 3000 F32, root 0", "broadcast of 3000 F32, root 1"],
        ),
        (
            |c, x, _, s| c.send(x, 1, s),
            |c, x, _, s| c.recv(&x.slice(0..10)?, 0, s),
            ["send of 12000 bytes to rank 1", "recv of 40 bytes from rank 0"],
        ),
    ];
    ranks(2, |comm, gpu| {
        for (first, second, names) in &pairs {
            let collectives = builder(comm, gpu).check_calls(true).connect().expect("collectives");
            let stream = gpu.stream().expect("a stream");
            let (floats, words) = (zeros::<f32>(gpu, 3000), zeros::<u32>(gpu, 3000));
            let rank = collectives.rank();
            // Calls that match go on as ever.
            for _ in 0..3 {
                collectives.all_reduce(&words, &words, ReduceOp::Sum, &stream).unwrap();
                collectives.broadcast(&floats, 1, &stream).unwrap();
            }
            collectives.synchronize(&stream).unwrap();
            let call = if rank == 0 { first } else { second };
            // The other rank may have made its call already.
            let called = call(&collectives, &floats, &words, &stream);
            assert!(!matches!(&called, Err(error) if !matches!(error, Error::Mismatch { .. })), "{called:?}");
            // A call behind the one that differs does not change the error.
            let _ = collectives.all_reduce(&floats, &floats, ReduceOp::Sum, &stream);
            let error = collectives.synchronize(&stream).expect_err("they differ");
            let (ours, theirs) = (names[rank], names[1 - rank]);
            let text = format!("rank {rank} called {ours}, while rank {} called {theirs}", 1 - rank);
            assert!(error.to_string().contains(&text), "{error}");
            let again = collectives.barrier(&stream).expect_err("it stays so");
            assert_eq!(again.kind(), ErrorKind::InvalidUsage);
            comm.bootstrap().barrier().unwrap();
        }
    });
}

/// A message of 0 bytes is none, so nobody waits for it.
#[test]
fn checked_calls_without_bytes_need_no_other_rank() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).check_calls(true).timeout(LIMIT).connect().expect("collectives");
        let (stream, numbers) = (gpu.stream().expect("a stream"), zeros::<f32>(gpu, 10));
        if collectives.rank() == 0 {
            collectives.send(&numbers.slice(0..0).unwrap(), 1, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
        }
        comm.bootstrap().barrier().unwrap();
    });
}

/// The length travels with a message, so no check of calls is needed.
#[test]
fn a_message_of_another_length_is_an_error_on_both_sides() {
    check_lengths(builder);
}

#[test]
fn a_message_of_another_length_between_nodes_is_an_error_on_both_sides() {
    check_lengths(|comm, gpu| on(&[0, 1], comm, gpu));
}

#[test]
fn a_message_of_another_length_between_nodes_by_direct_puts_is_an_error_on_both_sides() {
    check_lengths(|comm, gpu| on(&[0, 1], comm, gpu).between_nodes(Transport::CUDA_IPC));
}

fn check_lengths(builder: impl Fn(&Communicator, &Gpu) -> CollectivesBuilder + Sync) {
    const LONG: usize = 1 << 18;
    ranks(2, |comm, gpu| {
        for (sent, taken) in [(1024, 10), (10, 1024), (LONG, 10), (10, LONG), (LONG, LONG - 1)] {
            let collectives = builder(comm, gpu).connect().expect("collectives");
            let (stream, numbers) = (gpu.stream().expect("a stream"), zeros::<f32>(gpu, LONG));
            let part = |count| numbers.slice(0..count).unwrap();
            let message = |sent, taken| match collectives.rank() {
                0 => collectives.send(&part(sent), 1, &stream),
                _ => collectives.recv(&part(taken), 0, &stream),
            };
            for count in [1, 7, LONG, 10, 1024] {
                message(count, count).unwrap();
            }
            collectives.synchronize(&stream).unwrap();
            message(sent, taken).unwrap();
            names_lengths(&collectives, &stream, [0, 1], 4 * sent, 4 * taken);
            // The receiver leaves, and the sender is told all the same.
            drop(collectives);
            comm.bootstrap().barrier().unwrap();
        }
    });
}

/// Several messages each way in one call, of which the third of rank 1 to rank 2 has two lengths.
#[test]
fn a_message_of_another_length_among_others_is_an_error_on_both_sides() {
    check_lengths_of_groups(builder);
}

#[test]
fn a_message_of_another_length_among_others_between_nodes_is_an_error_on_both_sides() {
    check_lengths_of_groups(|comm, gpu| on(&[0, 0, 1], comm, gpu));
}

fn check_lengths_of_groups(builder: impl Fn(&Communicator, &Gpu) -> CollectivesBuilder + Sync) {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let (numbers, places) = (zeros::<f32>(gpu, 9000), [(); 6].map(|()| zeros::<f32>(gpu, 9000)));
        let rank = collectives.rank();
        let group = |third: usize| {
            let peers = (0..3).filter(|peer| *peer != rank);
            let of = peers.flat_map(|peer| [(peer, 40), (peer, 9000), (peer, 500)]).zip(&places);
            let parts: Vec<_> = of
                .map(|((peer, count), place)| {
                    let taken = if (rank, peer, count) == (2, 1, 500) { third } else { count };
                    (peer, numbers.slice(0..count).unwrap(), place.slice(0..taken).unwrap())
                })
                .collect();
            let transfers = parts.iter().flat_map(|(peer, sent, taken)| {
                let peer = *peer;
                [Transfer::Send { numbers: sent, peer }, Transfer::Recv { numbers: taken, peer }]
            });
            collectives.exchange(&transfers.collect::<Vec<_>>(), &stream)
        };
        group(500).unwrap();
        collectives.synchronize(&stream).unwrap();
        group(499).unwrap();
        if rank == 0 {
            // Its own messages match. Those of ranks that have given up may not come, and then it waits until these leave.
            let outcome = watched(LIMIT, "a call", || collectives.synchronize(&stream));
            assert!(matches!(outcome, Ok(()) | Err(Error::Failed { .. })), "{outcome:?}");
        } else {
            names_lengths(&collectives, &stream, [1, 2], 2000, 1996);
            drop(collectives);
        }
        comm.bootstrap().barrier().unwrap();
    });
}

/// Checks that the last message was found to have two lengths, on the rank that sent it and on the rank that took it.
fn names_lengths(
    collectives: &Collectives,
    stream: &Stream,
    [sender, receiver]: [usize; 2],
    sent: usize,
    taken: usize,
) {
    let is_sender = collectives.rank() == sender;
    // The sender may be complete before the receiver looks at the message, and is told then.
    let mut outcome = watched(LIMIT, "a call", || collectives.synchronize(stream));
    assert!(is_sender || outcome.is_err(), "{sent} {taken}");
    until("the error", || {
        outcome = std::mem::replace(&mut outcome, Ok(())).and_then(|()| Abort::check(collectives));
        outcome.is_err()
    });
    let error = outcome.expect_err("as just seen");
    let calls = [
        format!("send of {sent} bytes to rank {receiver}"),
        format!("recv of {taken} bytes from rank {sender}"),
    ];
    let [ours, theirs] = if is_sender { [&calls[0], &calls[1]] } else { [&calls[1], &calls[0]] };
    let [rank, other] = if is_sender { [sender, receiver] } else { [receiver, sender] };
    let text = format!("rank {rank} called {ours}, while rank {other} called {theirs}");
    assert!(error.to_string().contains(&text), "{error}");
    assert!(matches!(collectives.barrier(stream), Err(Error::Mismatch { .. })), "it stays so");
}

/// A rank that waits for others ends when it is told to, whatever the protocol.
#[test]
fn an_abort_ends_waits() {
    ranks(2, |comm, gpu| {
        let protocols = [Protocol::Ll16, Protocol::Ll128, Protocol::Simple, Protocol::SimpleByBulk];
        for (protocol, blocks) in protocols.into_iter().zip([1, 2, 3, 2]) {
            let told = Told::new(Selection { protocol, two_steps: false, blocks, threads: 64 });
            let builder = builder_with_lanes(comm, gpu).selector(told);
            let collectives = builder.connect().expect("collectives");
            abort_ends_waits(comm, gpu, &collectives);
        }
    });
}

/// Also where the others have left before, which is no failure by itself.
#[test]
fn after_an_abort_nothing_can_be_called() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        if collectives.rank() == 1 {
            drop(collectives);
            comm.bootstrap().barrier().unwrap();
        } else {
            comm.bootstrap().barrier().unwrap();
            // The goodbye comes by another way.
            thread::sleep(Duration::from_millis(100));
            collectives.abort("enough");
            let error = collectives.barrier(&stream).expect_err("it was aborted");
            assert!(format!("{error:?}").contains("enough"), "{error:?}");
        }
    });
}

#[test]
fn a_limit_ends_waits_and_names_who_is_waited_for() {
    ranks(2, |comm, gpu| {
        let limit = Duration::from_millis(300);
        let collectives = builder(comm, gpu).timeout(limit).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        if collectives.rank() == 1 {
            let numbers = zeros::<u8>(gpu, 10);
            collectives.recv(&numbers, 0, &stream).unwrap();
            let error = collectives.synchronize(&stream).expect_err("nobody sends");
            assert!(error.to_string().contains("rank 0"), "{error}");
            assert!(error.to_string().contains("MSCCLPP_CHECK_CALLS=1"), "{error}");
        }
        comm.bootstrap().barrier().unwrap(); // both hold their collectives until here
    });
}

/// A call that waits has a line in the log, also if nobody waits for its stream.
#[test]
fn a_call_that_waits_for_ten_seconds_has_a_line_that_names_it_and_the_rank() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test has one");
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let numbers = zeros::<f32>(gpu, 4000);
        let sum = || collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        sum();
        if collectives.rank() != 1 {
            sum();
            return collectives.synchronize(&stream).expect("it comes at last");
        }
        let begin = Instant::now();
        let due = |rank| {
            let text = format!(
                "rank {rank}: waiting for rank 1, which has not made call 1, all_reduce (Sum) of 4000 F32 (for 1"
            );
            lines.text().lines().any(|line| line.contains(&text) && line.contains("WARN"))
        };
        while !(due(0) && due(2)) {
            assert!(begin.elapsed() < LIMIT, "{}", lines.text());
            thread::sleep(Duration::from_millis(50));
        }
        sum();
        collectives.synchronize(&stream).unwrap();
    });
}

/// The other ranks' calls end when one dies, and say which.
#[test]
fn a_rank_that_aborts_the_job_is_named_by_all() {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let numbers = zeros::<i64>(gpu, 4000);
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        // This test ends with a failed job: the ranks that come after it have one of their own.
        if collectives.rank() == 1 {
            comm.abort("rank 1 has had enough");
        } else {
            let begin = Instant::now();
            let outcome = collectives
                .all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)
                .and_then(|()| collectives.synchronize(&stream));
            let error = outcome.expect_err("rank 1 has given up");
            assert!(format!("{error:?}").contains("rank 1"), "{error:?}");
            assert!(begin.elapsed() < LIMIT);
        }
    });
}

/// A call that gave up is not taken for one that runs by the calls behind it.
#[test]
fn an_abort_ends_waits_of_checked_calls() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).check_calls(true).connect().expect("collectives");
        abort_ends_waits(comm, gpu, &collectives);
    });
}

/// Replays on two streams, which nothing orders: the first waits for the other rank when the second begins.
#[test]
fn replays_that_overlap_are_named() {
    ranks(2, |comm, gpu| {
        let collectives = builder(comm, gpu).check_calls(true).connect().expect("collectives");
        let streams = [0, 1].map(|_| gpu.stream().expect("a stream"));
        let numbers = zeros::<f32>(gpu, 300);
        let graphs = streams.each_ref().map(|stream| {
            stream.begin_capture().unwrap();
            collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, stream).unwrap();
            stream.end_capture().unwrap()
        });
        // In order they are right.
        for graph in &graphs {
            // SAFETY: what was captured keeps its memory.
            unsafe { graph.launch(&streams[0]).unwrap() };
        }
        collectives.synchronize(&streams[0]).unwrap();
        comm.bootstrap().barrier().unwrap();
        if collectives.rank() == 0 {
            for (graph, stream) in graphs.iter().zip(&streams) {
                // SAFETY: as above.
                unsafe { graph.launch(stream).unwrap() };
            }
            let found = streams.each_ref().map(|stream| collectives.synchronize(stream));
            let errors: Vec<Error> = found.into_iter().filter_map(Result::err).collect();
            assert!(errors.iter().any(|error| matches!(error, Error::Overlap { rank: 0 })), "{errors:?}");
            let again = collectives.barrier(&streams[0]).expect_err("it stays so");
            assert!(again.to_string().contains("two collectives of rank 0 ran at the same time"), "{again}");
        }
        comm.bootstrap().barrier().unwrap();
    });
}
