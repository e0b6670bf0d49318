//! Collectives with a configuration of the call.

use std::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::support::nccl::{
    CollConfig, ConfigExt, Handle, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Numbers, Rank, SUCCESS,
    Stream, nccl, ranks,
};
use mscclpp_test_support::until;

const I64: c_int = 4;
const SUM: c_int = 0;
const N: usize = 2;
const COUNT: usize = 5000;

/// The numbers of `parts` parts: each has the hundreds of its place, the tens of its rank and nothing else.
fn numbers(rank: usize, parts: usize) -> Vec<i64> {
    (0..parts * COUNT).map(|i| (100 * (i / COUNT) + 10 * (rank + 1)) as i64).collect()
}

#[test]
fn each_collective_takes_a_configuration() {
    let bounded = CollConfig { min_ctas: 1, max_ctas: 1, user_profiler_tag: 7, ..CollConfig::INITIAL };
    let named = CollConfig { alg_selection: c"simple".as_ptr(), cta_policy: 2, ..CollConfig::INITIAL };
    let ignored =
        CollConfig { alg_selection: c"tree".as_ptr(), force_alg_selection: 0, ..CollConfig::INITIAL };
    let options =
        |next, option_id, number| ConfigExt { next, vendor_id: 0x6d_7363, option_id, value: (number, -1) };
    let (of_others, threads) =
        (ConfigExt { vendor_id: 1, ..options(ptr::null(), 9, 9) }, options(ptr::null(), 1, 64));
    let two_steps = options(&raw const threads, 2, 1);
    let with_options = CollConfig { ext: &raw const two_steps, ..CollConfig::INITIAL };
    let of_others = CollConfig { ext: &raw const of_others, ..CollConfig::INITIAL };
    // Pointers are not shared between threads, so each rank is given their numbers.
    let configs = [&bounded, &named, &ignored, &with_options, &of_others]
        .map(|config| ptr::from_ref(config).expose_provenance());
    ranks(N, |rank| {
        let (nccl, r) = (nccl(), rank.rank);
        let configs = configs.map(ptr::with_exposed_provenance::<CollConfig>);
        for config in configs.into_iter().chain([ptr::null()]) {
            let one = Numbers::new(&numbers(r, 1));
            let each = Numbers::new(&numbers(r, N));
            let check = |to: &[(usize, usize)], call: &dyn Fn(*mut std::ffi::c_void) -> c_int| {
                let recv = Numbers::new(&vec![-1i64; N * COUNT]);
                nccl.ok(call(recv.ptr()));
                rank.stream.synchronize();
                // Each part is the number of its place and the rank, or the sum of the ranks, from which it comes.
                let expected =
                    to.iter().flat_map(|(place, tens)| vec![(100 * place + 10 * tens) as i64; COUNT]);
                assert!(
                    recv.read().into_iter().zip(expected).all(|(got, expected)| got == expected),
                    "{to:?}"
                );
            };
            let (comm, stream) = (rank.comm, rank.stream.0);
            let none: &[(usize, usize)] = &[];
            // SAFETY: the memory has the size that each call names, and lives until the stream is synchronised.
            unsafe {
                check(&[(0, 3)], &|recv| {
                    (nccl.ncclAllReduceConfig)(one.ptr(), recv, COUNT, I64, SUM, comm, stream, config)
                });
                check(if r == 1 { &[(0, 3)] } else { none }, &|recv| {
                    (nccl.ncclReduceConfig)(one.ptr(), recv, COUNT, I64, SUM, 1, comm, stream, config)
                });
                check(&[(2 * r, 3)], &|recv| {
                    (nccl.ncclReduceScatterConfig)(each.ptr(), recv, COUNT, I64, SUM, comm, stream, config)
                });
                check(&[(0, 1), (0, 2)], &|recv| {
                    (nccl.ncclAllGatherConfig)(one.ptr(), recv, COUNT, I64, comm, stream, config)
                });
                check(&[(r, 1), (r, 2)], &|recv| {
                    (nccl.ncclAlltoAllConfig)(each.ptr(), recv, COUNT, I64, comm, stream, config)
                });
                check(&[(0, 2)], &|recv| {
                    (nccl.ncclBroadcastConfig)(one.ptr(), recv, COUNT, I64, 1, comm, stream, config)
                });
                check(if r == 1 { &[(0, 1), (0, 2)] } else { none }, &|recv| {
                    (nccl.ncclGatherConfig)(one.ptr(), recv, COUNT, I64, 1, comm, stream, config)
                });
                check(&[(r, 2)], &|recv| {
                    (nccl.ncclScatterConfig)(each.ptr(), recv, COUNT, I64, 1, comm, stream, config)
                });
            }
        }
        rank.destroy();
    });
}

#[test]
fn a_wrong_configuration_is_refused_and_fails_its_group() {
    ranks(N, |rank| {
        let nccl = nccl();
        let numbers = Numbers::new(&[1i64; 8]);
        let with = |config: &CollConfig| {
            let (memory, stream) = (numbers.ptr(), rank.stream.0);
            // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised.
            unsafe { (nccl.ncclAllReduceConfig)(memory, memory, 8, I64, SUM, rank.comm, stream, config) }
        };
        let unknown = CollConfig { alg_selection: c"tree".as_ptr(), ..CollConfig::INITIAL };
        nccl.fails(with(&unknown), INVALID_ARGUMENT, "algSelection is \"tree\"");
        let impossible = CollConfig { alg_selection: c"copy-engine".as_ptr(), ..CollConfig::INITIAL };
        nccl.fails(with(&impossible), INVALID_USAGE, "which cannot do this call");
        nccl.fails(
            with(&CollConfig { magic: 1, ..unknown }),
            INVALID_ARGUMENT,
            "NCCL_COLLCONFIG_INITIALIZER",
        );
        let option = ConfigExt { next: ptr::null(), vendor_id: 0x6d_7363, option_id: 1, value: (1000, 0) };
        let wrong = CollConfig { ext: &raw const option, ..CollConfig::INITIAL };
        nccl.fails(with(&wrong), INVALID_ARGUMENT, "option 1 (threads) is 1000");
        // SAFETY: the functions have no arguments.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            nccl.fails(
                with(&CollConfig { max_ctas: 0, ..CollConfig::INITIAL }),
                INVALID_ARGUMENT,
                "maxCTAs is 0",
            );
            nccl.fails((nccl.ncclGroupEnd)(), INVALID_ARGUMENT, "maxCTAs is 0");
        }
        assert_eq!(with(&CollConfig::INITIAL), SUCCESS);
        rank.stream.synchronize();
        assert_eq!(numbers.read(), [2; 8]);
        rank.destroy();
    });
}

#[test]
fn a_group_has_calls_with_and_without_configurations_beside_messages() {
    ranks(N, |rank| {
        let (nccl, peer) = (nccl(), 1 - rank.rank as c_int);
        let sums = [0, 1, 2].map(|i| Numbers::new(&[rank.rank as i64 + i; 1000]));
        let (own, theirs) = (Numbers::new(&[rank.rank as i64; 1000]), Numbers::new(&[-1i64; 1000]));
        let few = CollConfig { max_ctas: 1, ..CollConfig::INITIAL };
        let (comm, stream) = (rank.comm, rank.stream.0);
        // SAFETY: the memory has the size that each call names, and lives until the stream is synchronised.
        unsafe {
            let messages = || {
                nccl.ok((nccl.ncclSend)(own.ptr(), 1000, I64, peer, comm, stream));
                nccl.ok((nccl.ncclRecv)(theirs.ptr(), 1000, I64, peer, comm, stream));
            };
            nccl.ok((nccl.ncclGroupStart)());
            // One rank gives its messages first, and the other last.
            if rank.rank == 0 {
                messages();
            }
            for (i, sum) in sums.iter().enumerate() {
                let config = if i == 1 { ptr::null() } else { &raw const few };
                let memory = sum.ptr();
                nccl.ok((nccl.ncclAllReduceConfig)(memory, memory, 1000, I64, SUM, comm, stream, config));
            }
            if rank.rank == 1 {
                messages();
            }
            nccl.ok((nccl.ncclGroupEnd)());
        }
        rank.stream.synchronize();
        assert_eq!(theirs.read(), [i64::from(peer); 1000]);
        for (sum, i) in sums.iter().zip(0..) {
            assert_eq!(sum.read(), [1 + 2 * i; 1000]);
        }
        rank.destroy();
    });
}

/// An event.
struct Event(Handle);

impl Event {
    fn new() -> Self {
        let (nccl, mut event) = (nccl(), ptr::null_mut());
        // SAFETY: the function writes a handle to a place for one.
        nccl.ok(unsafe { (nccl.mscclppSimEventCreate)(&raw mut event) });
        Self(event)
    }

    fn is_reached(&self) -> bool {
        let nccl = nccl();
        // SAFETY: the event lives.
        match unsafe { (nccl.mscclppSimEventQuery)(self.0) } {
            SUCCESS => true,
            code => {
                assert_eq!(code, IN_PROGRESS, "{}", nccl.last_error(ptr::null_mut()));
                false
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { (nccl().mscclppSimEventDestroy)(self.0) };
    }
}

/// Adds up `numbers` with an event.
fn with_event(rank: &Rank, numbers: &Numbers<i64>, event: Handle) -> c_int {
    let config = CollConfig { launch_completion_event: event, ..CollConfig::INITIAL };
    let memory = numbers.ptr();
    // SAFETY: the memory has eight numbers, and lives until the stream is synchronised, as does the event.
    unsafe {
        (nccl().ncclAllReduceConfig)(memory, memory, 8, I64, SUM, rank.comm, rank.stream.0, &raw const config)
    }
}

#[test]
fn an_event_marks_when_a_call_is_launched_and_not_when_it_is_complete() {
    let calls = AtomicUsize::new(0);
    ranks(N, |rank| {
        let (nccl, numbers, event) = (nccl(), Numbers::new(&[1i64; 8]), Event::new());
        if rank.rank == 0 {
            nccl.ok(with_event(&rank, &numbers, ptr::null_mut()));
            nccl.ok(with_event(&rank, &numbers, event.0));
            assert!(!event.is_reached(), "the call before waits for the other rank");
            let waits = Stream::new();
            // SAFETY: stream and event live.
            nccl.ok(unsafe { (nccl.mscclppSimStreamWaitEvent)(waits.0, event.0) });
            calls.store(1, Ordering::SeqCst);
            until("the launch of the second call", || event.is_reached());
            waits.synchronize();
            // SAFETY: the stream lives.
            assert_eq!(unsafe { (nccl.mscclppSimStreamQuery)(rank.stream.0) }, IN_PROGRESS);
            calls.store(2, Ordering::SeqCst);
        } else {
            for (call, event) in [(1, ptr::null_mut()), (2, event.0)] {
                until("the other rank's call", || calls.load(Ordering::SeqCst) >= call);
                nccl.ok(with_event(&rank, &numbers, event));
            }
        }
        rank.stream.synchronize();
        assert!(event.is_reached());
        assert_eq!(numbers.read(), [4; 8]);
        rank.destroy();
    });
}

#[test]
fn a_group_has_one_event_for_a_communicator() {
    ranks(N, |rank| {
        let nccl = nccl();
        let (all, events) = ([0, 1, 2].map(|_| Numbers::new(&[1i64; 8])), [Event::new(), Event::new()]);
        let group = |given: [Handle; 3]| {
            // SAFETY: the functions have no arguments.
            nccl.ok(unsafe { (nccl.ncclGroupStart)() });
            let made = all.iter().zip(given).map(|(numbers, event)| with_event(&rank, numbers, event)).max();
            // SAFETY: as above.
            (made, unsafe { (nccl.ncclGroupEnd)() })
        };
        let [one, other] = events.each_ref().map(|event| event.0);
        assert_eq!(group([one, ptr::null_mut(), other]), (Some(INVALID_USAGE), INVALID_USAGE));
        nccl.fails(INVALID_USAGE, INVALID_USAGE, "two events as launchCompletionEvent");
        assert_eq!(group([one, ptr::null_mut(), one]), (Some(SUCCESS), SUCCESS));
        rank.stream.synchronize();
        assert!(events[0].is_reached());
        for numbers in &all {
            assert_eq!(numbers.read(), [2; 8]);
        }
        nccl.fails(
            with_event(&rank, &all[0], ptr::dangling_mut()),
            INVALID_ARGUMENT,
            "mscclppSimEventCreate",
        );
        rank.destroy();
    });
}
