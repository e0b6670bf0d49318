//! Writing into a peer's window, signals, and waits for them, among ranks that are threads of one process.

use std::{ffi::c_int, ptr, sync::Barrier, thread, time::Duration};

use crate::support::nccl::{
    Handle, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Numbers, REMOTE_ERROR, Rank, SUCCESS, Stream,
    WaitSignal, nccl, ranks,
};
use mscclpp_test_support::until;

const I64: c_int = 4;

/// A rank with a window.
struct Windowed<'a> {
    rank: &'a Rank,
    numbers: Numbers<i64>,
    window: Handle,
}

impl<'a> Windowed<'a> {
    fn new(rank: &'a Rank, numbers: usize) -> Self {
        let (nccl, numbers) = (nccl(), Numbers::new(&vec![0i64; numbers]));
        let mut window = ptr::null_mut();
        let bytes = 8 * numbers.read().len();
        // SAFETY: the memory lives until all ranks have destroyed their communicators, as `ncclMemAlloc` made it.
        nccl.ok(unsafe {
            (nccl.ncclCommWindowRegister)(rank.comm, numbers.ptr(), bytes, &raw mut window, 0)
        });
        Self { rank, numbers, window }
    }

    /// Puts numbers at number `at` of the peer's window, and signals it.
    fn put(
        &self,
        from: &Numbers<i64>,
        (peer, at): (usize, usize),
        (signal, context): (c_int, c_int),
        stream: &Stream,
    ) {
        let (nccl, count, Rank { comm, .. }) = (nccl(), from.read().len(), self.rank);
        // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised.
        nccl.ok(unsafe {
            (nccl.ncclPutSignal)(
                from.ptr(),
                count,
                I64,
                peer as c_int,
                self.window,
                8 * at,
                signal,
                context,
                0,
                *comm,
                stream.0,
            )
        });
    }

    fn signal(&self, peer: usize, (signal, context): (c_int, c_int), stream: &Stream) {
        let nccl = nccl();
        // SAFETY: the handles are those of a live communicator and stream.
        nccl.ok(unsafe { (nccl.ncclSignal)(peer as c_int, signal, context, 0, self.rank.comm, stream.0) });
    }

    fn wait(&self, waits: &[(c_int, usize, (c_int, c_int))], stream: &Stream) {
        let wait = |(count, peer, (signal, context)): &(c_int, usize, (c_int, c_int))| {
            WaitSignal(*count, *peer as c_int, *signal, *context)
        };
        let mut waits: Vec<WaitSignal> = waits.iter().map(wait).collect();
        let nccl = nccl();
        // SAFETY: the function reads so many descriptions; the handles are those of a live communicator and stream.
        nccl.ok(unsafe {
            (nccl.ncclWaitSignal)(waits.len() as c_int, waits.as_mut_ptr(), self.rank.comm, stream.0)
        });
    }
}

/// The code of a stream: complete, in progress, or failed.
fn query(stream: &Stream) -> c_int {
    // SAFETY: the handle is that of a live stream.
    unsafe { (nccl().mscclppSimStreamQuery)(stream.0) }
}

#[test]
fn what_was_put_is_there_when_its_signal_has_come() {
    ranks(3, |rank| {
        let own = Windowed::new(&rank, 3000);
        let [next, before] = [1, 2].map(|away| (rank.rank + away) % 3);
        for round in 0..20i64 {
            let from = Numbers::new(&vec![100 * round + rank.rank as i64; 1000]);
            own.put(&from, (next, 1000), (5, 2), &rank.stream);
            own.wait(&[(1, before, (5, 2))], &rank.stream);
            rank.stream.synchronize();
            assert!(
                own.numbers.read()[1000..2000] == vec![100 * round + before as i64; 1000],
                "round {round}"
            );
            // The sender may write again.
            own.signal(before, (0, 0), &rank.stream);
            own.wait(&[(1, next, (0, 0))], &rank.stream);
        }
        rank.stream.synchronize();
        assert_eq!((own.numbers.read()[999], own.numbers.read()[2000]), (0, 0), "beside the place");
        rank.destroy();
    });
}

#[test]
fn a_wait_takes_as_many_signals_as_it_says() {
    let looked = Barrier::new(2);
    ranks(2, |rank| {
        let own = Windowed::new(&rank, 10);
        let peer = 1 - rank.rank;
        let (other, nothing) = (Stream::new(), Numbers::new(&[0i64; 0]));
        // Two signals of each number but 7, in one call whose waits need several launches; and signals of a rank to itself.
        let all: Vec<_> =
            (0..64).filter(|signal| *signal != 7).map(|signal| (2, peer, (signal, 3))).collect();
        own.wait(&all, &rank.stream);
        own.wait(&[(1, peer, (7, 3)), (1, rank.rank, (7, 3))], &other);
        for signal in (0..64).filter(|signal| *signal != 7) {
            own.signal(peer, (signal, 3), &Stream(ptr::null_mut()));
            own.put(&nothing, (peer, 10), (signal, 3), &Stream(ptr::null_mut()));
        }
        rank.stream.synchronize();
        // None of these was for the other stream, which has waited meanwhile.
        assert_eq!(query(&other), IN_PROGRESS);
        own.signal(peer, (7, 3), &rank.stream);
        own.signal(rank.rank, (7, 3), &rank.stream);
        other.synchronize();
        // All were taken: the next wait takes the next signal.
        own.wait(&[(1, peer, (7, 3))], &other);
        assert_eq!(query(&other), IN_PROGRESS);
        looked.wait();
        own.signal(peer, (7, 3), &rank.stream);
        other.synchronize();
        rank.stream.synchronize();
        rank.assert_works();
        rank.destroy();
    });
}

#[test]
fn a_signal_of_one_context_is_none_of_another() {
    let looked = Barrier::new(2);
    ranks(2, |rank| {
        let own = Windowed::new(&rank, 1);
        let peer = 1 - rank.rank;
        let [first, second] = [Stream::new(), Stream::new()];
        own.wait(&[(1, peer, (0, 1))], &first);
        own.signal(peer, (0, 2), &rank.stream);
        own.wait(&[(1, peer, (0, 2))], &second);
        second.synchronize();
        assert_eq!(query(&first), IN_PROGRESS);
        looked.wait();
        own.signal(peer, (0, 1), &rank.stream);
        first.synchronize();
        rank.stream.synchronize();
        rank.destroy();
    });
}

#[test]
fn puts_of_several_streams_come_in_their_order() {
    ranks(2, |rank| {
        let own = Windowed::new(&rank, 70_000);
        let peer = 1 - rank.rank;
        let streams = [Stream::new(), Stream::new(), Stream::new()];
        for round in 0..3i64 {
            let large = Numbers::new(&vec![round + 1; 70_000]);
            // The first stream waits before its put. So the signal of the second, which is behind that put, waits too.
            own.wait(&[(1, rank.rank, (9, 1))], &streams[0]);
            own.put(&large, (peer, 0), (0, 0), &streams[0]);
            own.signal(peer, (1, 0), &streams[1]);
            own.wait(&[(1, peer, (1, 0))], &rank.stream);
            thread::sleep(Duration::from_millis(20));
            assert_eq!(query(&streams[1]), IN_PROGRESS);
            own.signal(rank.rank, (9, 1), &streams[2]);
            rank.stream.synchronize();
            assert!(own.numbers.read() == vec![round + 1; 70_000], "round {round}");
            own.wait(&[(1, peer, (0, 0))], &rank.stream);
            own.signal(peer, (2, 0), &rank.stream);
            own.wait(&[(1, peer, (2, 0))], &rank.stream);
            rank.stream.synchronize();
            streams.iter().for_each(Stream::synchronize);
        }
        rank.destroy();
    });
}

#[test]
fn a_graph_counts_on_in_each_replay() {
    ranks(2, |rank| {
        let (nccl, own) = (nccl(), Windowed::new(&rank, 100));
        let (peer, from) = (1 - rank.rank, Numbers::new(&[0i64; 100]));
        let (stream, mut graph) = (&rank.stream, ptr::null_mut());
        // SAFETY: the handles are those of a live stream and graph; memory that was captured lives until the graph is gone.
        unsafe {
            nccl.ok((nccl.mscclppSimStreamBeginCapture)(stream.0));
            own.put(&from, (peer, 0), (0, 0), stream);
            own.wait(&[(1, peer, (0, 0))], stream);
            nccl.ok((nccl.mscclppSimStreamEndCapture)(stream.0, &raw mut graph));
            for round in 1..6 {
                from.write(&[round; 100]);
                nccl.ok((nccl.mscclppSimGraphLaunch)(graph, stream.0));
                stream.synchronize();
                assert_eq!(own.numbers.read(), [round; 100]);
                own.signal(peer, (1, 0), stream);
                own.wait(&[(1, peer, (1, 0))], stream);
                stream.synchronize();
            }
            nccl.ok((nccl.mscclppSimGraphDestroy)(graph));
        }
        rank.destroy();
    });
}

#[test]
fn in_a_group_puts_come_before_waits() {
    ranks(2, |rank| {
        let (nccl, own) = (nccl(), Windowed::new(&rank, 4));
        let (peer, from) = (1 - rank.rank, Numbers::new(&[rank.rank as i64 + 5; 4]));
        // SAFETY: the functions have no arguments.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            own.wait(&[(1, peer, (0, 0))], &rank.stream);
            own.put(&from, (peer, 0), (0, 0), &rank.stream);
            nccl.ok((nccl.ncclGroupEnd)());
        }
        rank.stream.synchronize();
        assert_eq!(own.numbers.read(), [peer as i64 + 5; 4]);
        rank.destroy();
    });
}

#[test]
fn an_abort_ends_waits_for_signals() {
    let waiting = Barrier::new(2);
    ranks(2, |rank| {
        let (nccl, own) = (nccl(), Windowed::new(&rank, 1));
        if rank.rank == 1 {
            own.wait(&[(1, 0, (0, 0)), (1, 1, (0, 0))], &rank.stream);
            assert_eq!(nccl.state(rank.comm), SUCCESS);
            waiting.wait();
            until("the end of the wait", || query(&rank.stream) != IN_PROGRESS);
            until("the error", || nccl.state(rank.comm) == REMOTE_ERROR);
        } else {
            waiting.wait();
        }
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
    });
}

#[test]
fn wrong_arguments_are_named() {
    ranks(2, |rank| {
        let (nccl, Rank { comm, stream: Stream(stream), .. }) = (nccl(), &rank);
        let signal = |peer, signal, context, flags| {
            // SAFETY: the handles are those of a live communicator and stream.
            unsafe { (nccl.ncclSignal)(peer, signal, context, flags, *comm, *stream) }
        };
        nccl.fails(signal(0, 0, 0, 0), INVALID_USAGE, "before all ranks have registered a window");
        let own = Windowed::new(&rank, 8);
        nccl.fails(signal(2, 0, 0, 0), INVALID_ARGUMENT, "`peer` is 2");
        nccl.fails(signal(0, 64, 0, 0), INVALID_ARGUMENT, "`sigIdx` is 64; 0 to 63");
        nccl.fails(signal(0, 0, -1, 0), INVALID_ARGUMENT, "`ctx` is -1; 0 to 7");
        nccl.fails(signal(0, 0, 0, 1), INVALID_ARGUMENT, "`flags` is 1");
        let put = |from, count, window, offset| {
            // SAFETY: the handles are those of a live communicator and stream; nothing is put.
            unsafe { (nccl.ncclPutSignal)(from, count, I64, 0, window, offset, 0, 0, 0, *comm, *stream) }
        };
        nccl.fails(
            put(own.numbers.ptr(), 8, own.window, 8),
            INVALID_ARGUMENT,
            "64 bytes at `peerWinOffset` 8",
        );
        nccl.fails(put(own.numbers.ptr(), 1, ptr::null_mut(), 0), INVALID_ARGUMENT, "`peerWin` is");
        nccl.fails(put(ptr::null_mut(), 1, own.window, 0), INVALID_ARGUMENT, "`localbuff` is NULL");
        let wait = |mut wait: WaitSignal| {
            // SAFETY: the function reads one description; the handles are those of a live communicator and stream.
            unsafe { (nccl.ncclWaitSignal)(1, &raw mut wait, *comm, *stream) }
        };
        nccl.fails(wait(WaitSignal(-1, 0, 0, 0)), INVALID_ARGUMENT, "`opCnt` is -1");
        nccl.fails(wait(WaitSignal(1, -1, 0, 0)), INVALID_ARGUMENT, "`peer` is -1");
        rank.assert_works();
        rank.destroy();
    });
}
