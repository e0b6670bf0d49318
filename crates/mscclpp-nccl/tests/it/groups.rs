//! Groups: one thread with several ranks, sends and receives in any order, and failures.

use std::{ffi::c_int, ptr};

use crate::support::nccl::{
    Config, Handle, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Numbers, Rank, SUCCESS, SimInfo, Stream,
    nccl, ranks,
};

const N: usize = 3;
const F32: c_int = 7;

/// All ranks of a communicator, made by one thread.
struct All {
    comms: [Handle; N],
    streams: [Stream; N],
    numbers: [Numbers<f32>; N],
}

impl All {
    fn with(comms: [Handle; N]) -> Self {
        let nccl = nccl();
        let on = |device| {
            nccl.set_device(device);
            (Stream::new(), Numbers::new(&[1.0 + device as f32; 3000]))
        };
        let mut parts = (0..N).map(on);
        let mut next = || parts.next().expect("a part of each rank");
        let ((s0, n0), (s1, n1), (s2, n2)) = (next(), next(), next());
        Self { comms, streams: [s0, s1, s2], numbers: [n0, n1, n2] }
    }

    /// Makes two calls of each rank in one group, and checks their results.
    fn assert_works(&self) {
        let nccl = nccl();
        // SAFETY: the memory is that of the ranks' devices, and lives until the streams are synchronised.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            for _ in 0..2 {
                for ((comm, stream), numbers) in self.comms.iter().zip(&self.streams).zip(&self.numbers) {
                    let p = numbers.ptr();
                    nccl.ok((nccl.ncclAllReduce)(p, p, 3000, F32, 0, *comm, stream.0));
                }
            }
            nccl.ok((nccl.ncclGroupEnd)());
        }
        for (stream, numbers) in self.streams.iter().zip(&self.numbers) {
            stream.synchronize();
            assert_eq!(numbers.read(), [18.0; 3000]);
        }
    }

    fn destroy(self) {
        // One thread destroys them one after the other, so none of them may wait for the others.
        for comm in self.comms {
            // SAFETY: the handle is that of a live communicator.
            nccl().ok(unsafe { (nccl().ncclCommDestroy)(comm) });
        }
    }
}

#[test]
fn one_thread_makes_all_ranks_in_a_group() {
    let (nccl, id) = (nccl(), nccl().unique_id());
    let mut comms = [ptr::null_mut(); N];
    // SAFETY: the functions write handles to places that live until the group ends.
    unsafe {
        nccl.ok((nccl.ncclGroupStart)());
        for (rank, comm) in comms.iter_mut().enumerate() {
            nccl.set_device(rank);
            nccl.ok((nccl.ncclCommInitRank)(comm, N as c_int, id, rank as c_int));
        }
        nccl.ok((nccl.ncclGroupEnd)());
    }
    let all = All::with(comms);
    all.assert_works();
    all.destroy();
}

/// All ranks register a window together: here one thread does so for all, and its group's end waits for them.
#[test]
fn one_thread_registers_the_windows_of_all_ranks() {
    const PART: usize = 40_000;
    let nccl = nccl();
    let mut comms = [ptr::null_mut(); N];
    // SAFETY: the function writes handles to places for them.
    unsafe { nccl.ok((nccl.ncclCommInitAll)(comms.as_mut_ptr(), N as c_int, ptr::null())) };
    let all = All::with(comms);
    let numbers: Vec<Numbers<f32>> = (0..N)
        .map(|rank| {
            nccl.set_device(rank);
            Numbers::new(&vec![0.0; N * PART])
        })
        .collect();
    for flags in [0, 1] {
        let mut windows = [ptr::null_mut(); N];
        // SAFETY: the memory is that of the ranks' devices, and lives until the streams are synchronised; handles are written to
        // places for them.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            for ((comm, numbers), window) in comms.iter().zip(&numbers).zip(&mut windows) {
                nccl.ok((nccl.ncclCommWindowRegister)(*comm, numbers.ptr(), N * PART * 4, window, flags));
            }
            nccl.ok((nccl.ncclGroupEnd)());
            for (rank, numbers) in numbers.iter().enumerate() {
                let own = vec![rank as f32 + 1.0 + flags as f32; PART];
                let others = vec![0.0; rank * PART];
                let behind = vec![0.0; (N - 1 - rank) * PART];
                numbers.write(&[others, own, behind].concat());
            }
            nccl.ok((nccl.ncclGroupStart)());
            for (rank, (comm, numbers)) in comms.iter().zip(&numbers).enumerate() {
                let (own, stream) = (numbers.at(rank * PART), all.streams[rank].0);
                nccl.ok((nccl.ncclAllGather)(own, numbers.ptr(), PART, F32, *comm, stream));
            }
            nccl.ok((nccl.ncclGroupEnd)());
            for (rank, numbers) in numbers.iter().enumerate() {
                all.streams[rank].synchronize();
                let expected = (0..N).flat_map(|from| vec![from as f32 + 1.0 + flags as f32; PART]);
                assert!(numbers.read() == expected.collect::<Vec<_>>(), "rank {rank}, flags {flags}");
            }
            for (comm, window) in comms.iter().zip(windows) {
                nccl.ok((nccl.ncclCommWindowDeregister)(*comm, window));
            }
        }
    }
    all.destroy();
}

#[test]
fn a_group_in_which_a_rank_is_missing_ends_at_once() {
    let (nccl, id) = (nccl(), nccl().unique_id());
    let mut comms = [ptr::null_mut(); 2];
    // SAFETY: the functions write handles to places that live until the group ends.
    unsafe {
        nccl.ok((nccl.ncclGroupStart)());
        nccl.set_device(0);
        nccl.ok((nccl.ncclCommInitRank)(&raw mut comms[0], 2, id, 0));
        let wrong = (nccl.ncclCommInitRank)(&raw mut comms[1], 2, id, 2);
        nccl.fails(wrong, INVALID_ARGUMENT, "rank 2 of 2");
        nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, "rank 2 of 2");
    }
    assert!(comms.iter().all(|comm| comm.is_null()));
}

#[test]
fn a_group_that_fails_leaves_communicators_that_are_formed() {
    let (nccl, id) = (nccl(), nccl().unique_id());
    let mut comms = [ptr::null_mut(); 2];
    nccl.set_device(0);
    // SAFETY: the functions write handles to places that live until the group ends.
    unsafe {
        nccl.ok((nccl.ncclGroupStart)());
        nccl.ok((nccl.ncclCommInitRank)(&raw mut comms[0], 1, id, 0));
        mscclpp_test_support::until("the communicator", || nccl.state(comms[0]) == SUCCESS);
        let wrong = (nccl.ncclCommInitRank)(&raw mut comms[1], 2, id, 2);
        nccl.fails(wrong, INVALID_ARGUMENT, "rank 2 of 2");
        nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, "rank 2 of 2");
    }
    let rank = Rank::of(comms[0]);
    rank.assert_works();
    rank.destroy();
}

/// The second rank, which the same thread has, fails to register its window.
#[test]
fn a_group_in_which_a_window_is_missing_ends_at_once() {
    let nccl = nccl();
    let (mut comms, mut windows) = ([ptr::null_mut(); 2], [ptr::null_mut(); 2]);
    // SAFETY: the functions write handles to places for them; the memory is that of the first rank's device.
    unsafe {
        nccl.ok((nccl.ncclCommInitAll)(comms.as_mut_ptr(), 2, ptr::null()));
        nccl.set_device(0);
        let numbers = Numbers::new(&[0f32; 1000]);
        nccl.ok((nccl.ncclGroupStart)());
        nccl.ok((nccl.ncclCommWindowRegister)(comms[0], numbers.ptr(), 4000, &raw mut windows[0], 0));
        let wrong = (nccl.ncclCommWindowRegister)(comms[1], ptr::null_mut(), 4000, &raw mut windows[1], 0);
        nccl.fails(wrong, INVALID_ARGUMENT, "`buff` is NULL");
        nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, "`buff` is NULL");
        for comm in comms {
            nccl.ok((nccl.ncclCommDestroy)(comm));
        }
    }
}

#[test]
fn init_all_makes_all_ranks() {
    let nccl = nccl();
    let mut comms = [ptr::null_mut(); N];
    // SAFETY: the function writes handles to places for them.
    nccl.ok(unsafe { (nccl.ncclCommInitAll)(comms.as_mut_ptr(), N as c_int, ptr::null()) });
    let all = All::with(comms);
    all.assert_works();
    for (rank, comm) in all.comms.iter().enumerate() {
        let (mut device, mut user_rank, mut count) = (-1, -1, -1);
        // SAFETY: the functions write numbers to places for them.
        unsafe {
            nccl.ok((nccl.ncclCommCuDevice)(*comm, &raw mut device));
            nccl.ok((nccl.ncclCommUserRank)(*comm, &raw mut user_rank));
            nccl.ok((nccl.ncclCommCount)(*comm, &raw mut count));
        }
        assert_eq!([device, user_rank, count], [rank as c_int, rank as c_int, N as c_int]);
    }
    all.destroy();
}

#[test]
fn init_all_takes_the_devices_that_are_named() {
    let nccl = nccl();
    let mut comms = [ptr::null_mut(); 2];
    // SAFETY: the function reads two numbers, and writes two handles to places for them.
    nccl.ok(unsafe { (nccl.ncclCommInitAll)(comms.as_mut_ptr(), 2, [5, 3].as_ptr()) });
    let mut device = -1;
    // SAFETY: the function writes a number to a place for one.
    nccl.ok(unsafe { (nccl.ncclCommCuDevice)(comms[1], &raw mut device) });
    assert_eq!(device, 3);
    for comm in comms {
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommDestroy)(comm) });
    }
    // SAFETY: the function reads two numbers, and writes two handles to places for them.
    let refused = unsafe { (nccl.ncclCommInitAll)(comms.as_mut_ptr(), 2, [4, 4].as_ptr()) };
    nccl.fails(refused, INVALID_USAGE, "ranks 0 and 1 are on the same device");
    assert!(comms.iter().all(|comm| comm.is_null()));
}

#[test]
fn a_wrong_place_for_a_communicator_fails_the_group() {
    let (nccl, id, mut comm) = (nccl(), nccl().unique_id(), ptr::null_mut());
    nccl.set_device(0);
    // SAFETY: the functions write a handle to a place for one, and refuse NULL.
    unsafe {
        nccl.ok((nccl.ncclGroupStart)());
        nccl.ok((nccl.ncclCommInitRank)(&raw mut comm, 2, id, 0));
        let text = "`comm`: the out argument is NULL";
        nccl.fails((nccl.ncclCommInitRank)(ptr::null_mut(), 2, id, 1), INVALID_ARGUMENT, text);
        nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, text);
        nccl.ok((nccl.ncclGroupStart)());
        let text = "`ndev` is 0";
        nccl.fails((nccl.ncclCommInitAll)(&raw mut comm, 0, ptr::null()), INVALID_ARGUMENT, text);
        nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, text);
    }
}

#[test]
fn a_communicator_that_does_not_block_is_polled() {
    let (nccl, id) = (nccl(), nccl().unique_id());
    let mut comms = [ptr::null_mut(); N];
    let mut config = Config::NOT_BLOCKING;
    for (rank, comm) in comms.iter_mut().enumerate() {
        nccl.set_device(rank);
        // SAFETY: the function reads a configuration, and writes a handle to a place for one.
        let code =
            unsafe { (nccl.ncclCommInitRankConfig)(comm, N as c_int, id, rank as c_int, &raw mut config) };
        assert_eq!(code, IN_PROGRESS);
        assert!(!comm.is_null());
        if rank == 0 {
            assert_eq!(nccl.state(*comm), IN_PROGRESS, "the others are not there yet");
            let numbers = Numbers::new(&[0f32]);
            // SAFETY: the memory has the size that the call names.
            let early = unsafe { (nccl.ncclBcast)(numbers.ptr(), 1, F32, 0, *comm, ptr::null_mut()) };
            nccl.fails(early, INVALID_USAGE, "still being formed");
        }
    }
    for comm in comms {
        mscclpp_test_support::until("a communicator", || nccl.state(comm) != IN_PROGRESS);
        assert_eq!(nccl.state(comm), SUCCESS);
    }
    let all = All::with(comms);
    all.assert_works();
    for comm in all.comms {
        // SAFETY: the handle is that of a live communicator.
        assert_eq!(unsafe { (nccl.ncclCommFinalize)(comm) }, IN_PROGRESS);
        mscclpp_test_support::until("its end", || nccl.state(comm) == SUCCESS);
    }
    all.destroy();
}

#[test]
fn sends_and_receives_are_given_in_any_order() {
    ranks(N, |rank| {
        let nccl = nccl();
        let own: Vec<f32> = (0..N).map(|peer| (10 * rank.rank + peer) as f32).collect();
        // Each rank sends a short and a long message to each rank, itself included.
        let short = Numbers::new(&own);
        let long = Numbers::new(&own.iter().flat_map(|number| vec![*number; 40_000]).collect::<Vec<_>>());
        let (got, got_long) = (Numbers::new(&[0f32; N]), Numbers::new(&[0f32; N * 40_000]));
        let (comm, stream) = (rank.comm, rank.stream.0);
        let recv = |peer: usize| {
            // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised: in all tests of
            // this file.
            unsafe {
                nccl.ok((nccl.ncclRecv)(got.at(peer), 1, F32, peer as c_int, comm, stream));
                nccl.ok((nccl.ncclRecv)(
                    got_long.at(peer * 40_000),
                    40_000,
                    F32,
                    peer as c_int,
                    comm,
                    stream,
                ));
            }
        };
        let send = |peer: usize| {
            // SAFETY: the memory lives until the stream is synchronised.
            unsafe {
                nccl.ok((nccl.ncclSend)(short.at(peer), 1, F32, peer as c_int, comm, stream));
                nccl.ok((nccl.ncclSend)(long.at(peer * 40_000), 40_000, F32, peer as c_int, comm, stream));
            }
        };
        for order in 0..3 {
            got.write(&[0.0; N]);
            // SAFETY: the functions have no arguments.
            nccl.ok(unsafe { (nccl.ncclGroupStart)() });
            match order {
                0 => (0..N).for_each(|peer| (send(peer), recv(peer)).0),
                1 => {
                    (0..N).rev().for_each(recv);
                    (0..N).for_each(send);
                }
                _ => (0..N).for_each(|i| {
                    recv((rank.rank + i) % N);
                    send((rank.rank + N - i) % N);
                }),
            }
            // SAFETY: the function has no arguments.
            nccl.ok(unsafe { (nccl.ncclGroupEnd)() });
            rank.stream.synchronize();
            let expected: Vec<f32> = (0..N).map(|peer| (10 * peer + rank.rank) as f32).collect();
            assert_eq!(got.read(), expected, "order {order}");
            let long: Vec<f32> = expected.iter().flat_map(|number| vec![*number; 40_000]).collect();
            assert!(got_long.read() == long, "order {order}");
        }
        rank.destroy();
    });
}

#[test]
fn a_group_has_calls_of_several_streams_and_communicators() {
    let (nccl, second) = (nccl(), nccl().unique_id());
    ranks(2, |rank| {
        let other = crate::support::nccl::Rank::join(rank.rank, 2, second);
        let numbers: [_; 4] = std::array::from_fn(|i| Numbers::new(&vec![1.0 + i as f32; 2000]));
        let pairs = [
            (rank.comm, rank.stream.0),
            (other.comm, other.stream.0),
            (rank.comm, other.stream.0),
            (other.comm, rank.stream.0),
        ];
        // SAFETY: the memory lives until the stream is synchronised.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            nccl.ok((nccl.ncclGroupStart)());
            for ((comm, stream), numbers) in pairs.iter().zip(&numbers) {
                nccl.ok((nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), 2000, F32, 0, *comm, *stream));
            }
            nccl.ok((nccl.ncclGroupEnd)());
            nccl.ok((nccl.ncclGroupEnd)());
        }
        // A stream is complete only after all calls of each communicator that has a call in it.
        rank.stream.synchronize();
        other.stream.synchronize();
        for (i, numbers) in numbers.iter().enumerate() {
            assert_eq!(numbers.read(), [2.0 + 2.0 * i as f32; 2000]);
        }
        other.destroy();
        rank.destroy();
    });
}

#[test]
fn a_group_with_a_wrong_call_does_nothing() {
    ranks(1, |rank| {
        let nccl = nccl();
        let (from, to) = (Numbers::new(&[5f32]), Numbers::new(&[0f32]));
        // SAFETY: the memory lives until the stream is synchronised.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            nccl.ok((nccl.ncclAllReduce)(from.ptr(), to.ptr(), 1, F32, 0, rank.comm, rank.stream.0));
            let wrong = (nccl.ncclAllReduce)(from.ptr(), to.ptr(), 1, 99, 0, rank.comm, rank.stream.0);
            nccl.fails(wrong, INVALID_ARGUMENT, "99");
            nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, "99");
        }
        rank.stream.synchronize();
        assert_eq!(to.read(), [0.0]);
        // SAFETY: the function has no arguments.
        nccl.fails(unsafe { (nccl.ncclGroupEnd)() }, INVALID_USAGE, "has not called ncclGroupStart");
        rank.assert_works();
        rank.destroy();
    });
}

#[test]
fn a_simulated_group_does_nothing() {
    ranks(1, |rank| {
        let nccl = nccl();
        let (from, to) = (Numbers::new(&[5f32]), Numbers::new(&[0f32]));
        let mut info =
            SimInfo { size: size_of::<SimInfo>(), magic: 0x7468_5283, version: 22_809, estimated_time: -1.0 };
        // SAFETY: the memory lives until the stream is synchronised.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            nccl.ok((nccl.ncclAllReduce)(from.ptr(), to.ptr(), 1, F32, 0, rank.comm, rank.stream.0));
            nccl.ok((nccl.ncclGroupSimulateEnd)(&raw mut info));
            rank.stream.synchronize();
            assert_eq!(to.read(), [0.0]);
            // For simulated devices there is no prediction.
            assert_eq!(info.estimated_time, -1.0);
            nccl.ok((nccl.ncclGroupStart)());
            info.magic = 0;
            nccl.fails(
                (nccl.ncclGroupSimulateEnd)(&raw mut info),
                INVALID_ARGUMENT,
                "NCCL_SIM_INFO_INITIALIZER",
            );
            nccl.ok((nccl.ncclGroupEnd)());
        }
        rank.assert_works();
        rank.destroy();
    });
}
