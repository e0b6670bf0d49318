//! Properties, statistics of memory, windows' addresses, and parameters.

use std::{
    collections::BTreeSet,
    ffi::{CStr, c_char, c_int},
    mem::{offset_of, zeroed},
    ptr,
    sync::{Barrier, Mutex},
};

use crate::support::nccl::{
    CommProperties, Handle, INVALID_ARGUMENT, INVALID_USAGE, Numbers, REMOTE_ERROR, Rank, Stream, UNDEFINED,
    nccl, ranks,
};

const MAGIC: u32 = 0xcafe_beef;

/// The properties of a communicator, in a struct that states `size` bytes.
fn properties(rank: &Rank, size: usize) -> CommProperties {
    let nccl = nccl();
    // SAFETY: all bytes of zero are a valid struct.
    let mut properties = CommProperties { size, magic: MAGIC, n_lsa_teams: UNDEFINED, ..unsafe { zeroed() } };
    // SAFETY: the struct has at least the size that it states.
    nccl.ok(unsafe { (nccl.ncclCommQueryProperties)(rank.comm, &raw mut properties) });
    properties
}

#[test]
fn properties_say_who_a_rank_is_and_what_there_is() {
    let hashes = Mutex::new(Vec::new());
    for _ in 0..2 {
        ranks(2, |rank| {
            let said = properties(&rank, size_of::<CommProperties>());
            let r = rank.rank as c_int;
            assert_eq!([said.rank, said.n_ranks, said.cuda_dev, said.nvml_dev], [r, 2, r, r]);
            assert_eq!(said.n_lsa_teams, 1);
            let none = [said.device_api_support, said.multimem_support];
            assert_eq!((none, said.cft, said.gin_support), ([false; 2], [false; 3], [false; 64]));
            assert!(said.host_rma_support);
            let gin = [said.gin_type, said.railed_gin_type, said.gin_connection_type, said.gin_min_stride];
            assert_eq!((gin, said.dev_comm_runtime_version_size), ([0; 4], 0));
            assert_eq!((said.size, said.magic), (size_of::<CommProperties>(), MAGIC));
            hashes.lock().expect("no panic").push(said.comm_hash);
            // A struct of an older header ends earlier, and what is behind it is not written.
            let old = properties(&rank, offset_of!(CommProperties, n_lsa_teams));
            assert_eq!((old.n_ranks, old.n_lsa_teams, old.comm_hash), (2, UNDEFINED, 0));
            let nccl = nccl();
            let mut wrong = CommProperties { magic: 0, ..said };
            // SAFETY: the struct has the size that it states.
            unsafe {
                let refused = (nccl.ncclCommQueryProperties)(rank.comm, &raw mut wrong);
                nccl.fails(refused, INVALID_ARGUMENT, "NCCL_COMM_PROPERTIES_INITIALIZER");
            }
            rank.destroy();
        });
    }
    let hashes = hashes.into_inner().expect("no panic");
    assert_eq!(hashes[0], hashes[1], "the ranks of a communicator");
    assert_eq!(BTreeSet::from_iter(hashes).len(), 2, "two communicators");
}

#[test]
fn memory_is_counted() {
    ranks(2, |rank| {
        let nccl = nccl();
        let of = |statistic| {
            let mut value = u64::MAX;
            // SAFETY: the function writes a number to a place for one.
            let code = unsafe { (nccl.ncclCommMemStats)(rank.comm, statistic, &raw mut value) };
            (code, value)
        };
        let [suspend, suspended, persist, total] = [0, 1, 2, 3].map(|statistic| {
            let (code, value) = of(statistic);
            nccl.ok(code);
            value
        });
        assert_eq!((suspended, suspend + persist), (0, total));
        assert!(suspend > 1 << 20 && persist > 0, "{suspend} and {persist}");
        nccl.fails(of(4).0, INVALID_ARGUMENT, "`stat` is 4");
        rank.destroy();
    });
}

/// Ranks of one thread are suspended in a group, with a window, and a graph that is replayed when they are resumed.
#[test]
fn all_ranks_of_a_thread_are_suspended_in_a_group() {
    let (nccl, mut comms) = (nccl(), [ptr::null_mut(); 2]);
    // SAFETY: memory and graphs live until the streams are synchronised; handles are written to places for them.
    unsafe {
        nccl.ok((nccl.ncclCommInitAll)(comms.as_mut_ptr(), 2, ptr::null()));
        let all = |each: &dyn Fn(usize) -> c_int| {
            nccl.ok((nccl.ncclGroupStart)());
            (0..2).for_each(|r| nccl.ok(each(r)));
            nccl.ok((nccl.ncclGroupEnd)());
        };
        let parts = [0, 1].map(|r| {
            nccl.set_device(r);
            (Stream::new(), Numbers::new(&[0f32; 40_000]))
        });
        let windows = Mutex::new([ptr::null_mut(); 2]);
        all(&|r| {
            let place = &raw mut windows.lock().expect("no panic")[r];
            (nccl.ncclCommWindowRegister)(comms[r], parts[r].1.ptr(), 160_000, place, 0)
        });
        let mut graphs = [ptr::null_mut(); 2];
        for (r, (stream, numbers)) in parts.iter().enumerate() {
            let (p, half) = (numbers.ptr(), numbers.at(20_000 * r));
            nccl.ok((nccl.mscclppSimStreamBeginCapture)(stream.0));
            nccl.ok((nccl.ncclAllReduce)(half, half, 20_000, 7, 0, comms[r], stream.0));
            nccl.ok((nccl.ncclAllGather)(half, p, 20_000, 7, comms[r], stream.0));
            nccl.ok((nccl.mscclppSimStreamEndCapture)(stream.0, &raw mut graphs[r]));
        }
        for round in 1..=3 {
            for (r, (stream, numbers)) in parts.iter().enumerate() {
                numbers.write(&[round as f32; 40_000]);
                nccl.ok((nccl.mscclppSimGraphLaunch)(graphs[r], stream.0));
            }
            for (stream, numbers) in &parts {
                stream.synchronize();
                assert_eq!(numbers.read(), [2.0 * round as f32; 40_000], "round {round}");
            }
            all(&|r| (nccl.ncclCommSuspend)(comms[r], 1));
            all(&|r| (nccl.ncclCommResume)(comms[r]));
        }
        (0..2).for_each(|r| nccl.ok((nccl.mscclppSimGraphDestroy)(graphs[r])));
        (0..2).for_each(|r| nccl.ok((nccl.ncclCommDestroy)(comms[r])));
    }
}

#[test]
fn a_suspended_communicator_takes_no_calls_until_it_is_resumed() {
    ranks(2, |rank| {
        let (nccl, numbers, mut suspended) = (nccl(), Numbers::new(&[0f32; 4]), 9);
        // SAFETY: the memory has the size that the call names; a number is written to a place for one.
        unsafe {
            let call = || (nccl.ncclBcast)(numbers.ptr(), 4, 7, 0, rank.comm, rank.stream.0);
            nccl.fails((nccl.ncclCommResume)(rank.comm), INVALID_USAGE, "is not suspended");
            nccl.fails((nccl.ncclCommSuspend)(rank.comm, 2), INVALID_ARGUMENT, "`flags` is 2");
            nccl.ok((nccl.ncclCommSuspend)(rank.comm, 1));
            nccl.ok((nccl.ncclCommMemStats)(rank.comm, 1, &raw mut suspended));
            assert_eq!(suspended, 1);
            nccl.fails(call(), INVALID_USAGE, "is suspended; call ncclCommResume");
            nccl.fails((nccl.ncclCommSuspend)(rank.comm, 1), INVALID_USAGE, "is suspended");
            nccl.ok((nccl.ncclCommResume)(rank.comm));
            nccl.ok(call());
        }
        rank.stream.synchronize();
        rank.assert_works();
        // A suspended communicator can be destroyed.
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommSuspend)(rank.comm, 1) });
        rank.destroy();
    });
}

#[test]
fn a_suspend_that_fails_changes_nothing() {
    let done = Barrier::new(2);
    ranks(2, |rank| {
        let (nccl, mut suspended) = (nccl(), 9);
        rank.assert_works();
        done.wait();
        // SAFETY: the handle is that of a live communicator; a number is written to a place for one.
        unsafe {
            if rank.rank == 0 {
                nccl.ok((nccl.ncclCommAbort)(rank.comm));
                return;
            }
            mscclpp_test_support::until("the loss", || {
                let numbers = Numbers::new(&[0f32; 4]);
                let code = (nccl.ncclBcast)(numbers.ptr(), 4, 7, 0, rank.comm, rank.stream.0);
                let _ = (nccl.mscclppSimStreamSynchronize)(rank.stream.0);
                code == REMOTE_ERROR
            });
            nccl.fails((nccl.ncclCommSuspend)(rank.comm, 1), REMOTE_ERROR, "ncclCommAbort was called");
            nccl.ok((nccl.ncclCommMemStats)(rank.comm, 1, &raw mut suspended));
            assert_eq!(suspended, 0);
            nccl.fails((nccl.ncclCommResume)(rank.comm), INVALID_USAGE, "is not suspended");
            nccl.ok((nccl.ncclCommAbort)(rank.comm));
        }
    });
}

#[test]
fn a_group_suspends_and_resumes() {
    ranks(2, |rank| {
        let nccl = nccl();
        // SAFETY: the handle is that of a live communicator.
        unsafe {
            nccl.ok((nccl.ncclGroupStart)());
            nccl.ok((nccl.ncclCommSuspend)(rank.comm, 1));
            nccl.ok((nccl.ncclCommResume)(rank.comm));
            nccl.ok((nccl.ncclGroupEnd)());
        }
        rank.assert_works();
        rank.destroy();
    });
}

#[test]
fn a_window_says_where_peers_have_their_parts() {
    let written = Barrier::new(2);
    ranks(2, |rank| {
        let (nccl, peer) = (nccl(), 1 - rank.rank as c_int);
        let numbers = Numbers::new(&[rank.rank as u64 + 7; 100]);
        let (mut window, mut at): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the memory is that of the device, and lives until all ranks have destroyed their communicators; addresses are
        // written to places for them. The ranks write their own part before the barrier, and read the other's after it.
        unsafe {
            nccl.ok((nccl.ncclCommWindowRegister)(rank.comm, numbers.at(20), 640, &raw mut window, 2));
            nccl.ok((nccl.ncclWinGetUserPtr)(rank.comm, window, &raw mut at));
            assert_eq!(at, numbers.at(20));
            nccl.ok((nccl.ncclGetLsaDevicePointer)(window, 8, rank.rank as c_int, &raw mut at));
            assert_eq!(at, numbers.at(21));
            nccl.ok((nccl.ncclGetLsaMultimemDevicePointer)(window, 8, &raw mut at));
            assert!(at.is_null());
            nccl.ok((nccl.ncclGetPeerDevicePointer)(window, 632, peer, &raw mut at));
            at.cast::<u64>().write_volatile(rank.rank as u64 + 100);
            written.wait();
            assert_eq!(numbers.read()[99], peer as u64 + 100);
            let refused = (nccl.ncclGetPeerDevicePointer)(window, 640, peer, &raw mut at);
            nccl.fails(refused, INVALID_ARGUMENT, "`offset` is 640 in a window of 640 bytes");
            nccl.fails(
                (nccl.ncclGetPeerDevicePointer)(window, 0, 2, &raw mut at),
                INVALID_ARGUMENT,
                "`peer` is 2 in a communicator of 2 ranks",
            );
            nccl.fails(
                (nccl.ncclCommWindowRegister)(rank.comm, numbers.ptr(), 640, &raw mut at, 4),
                INVALID_ARGUMENT,
                "`winFlags` is 0x4",
            );
            written.wait();
            nccl.ok((nccl.ncclCommWindowDeregister)(rank.comm, window));
            let gone = (nccl.ncclGetPeerDevicePointer)(window, 0, peer, &raw mut at);
            nccl.fails(gone, INVALID_ARGUMENT, "which is no window");
            nccl.fails(
                (nccl.ncclWinGetUserPtr)(rank.comm, window, &raw mut at),
                INVALID_ARGUMENT,
                "is not registered",
            );
        }
        rank.destroy();
    });
}

#[test]
fn parameters_are_the_variables_that_count() {
    let (nccl, mut table, mut len) = (nccl(), ptr::null_mut(), 0);
    let bound = |key: &CStr| {
        let mut handle = ptr::null_mut();
        // SAFETY: the key is a C string; the function writes a handle to a place for one.
        nccl.ok(unsafe { (nccl.ncclParamBind)(&raw mut handle, key.as_ptr()) });
        handle
    };
    // SAFETY: results are written to places for them, and texts live until this thread calls the function again.
    unsafe {
        nccl.ok((nccl.ncclParamGetAllParameterKeys)(&raw mut table, &raw mut len));
        let keys: &[*const c_char] = std::slice::from_raw_parts(table, len as usize);
        let keys: BTreeSet<&CStr> = keys.iter().map(|key| CStr::from_ptr(*key)).collect();
        assert_eq!(keys.len(), 22, "{keys:?}");
        for key in &keys {
            let (mut by_key, mut by_handle, mut len) = (ptr::null(), ptr::null(), -1);
            nccl.ok((nccl.ncclParamGetParameter)(key.as_ptr(), &raw mut by_key, &raw mut len));
            nccl.ok((nccl.ncclParamGetStr)(bound(key), &raw mut by_handle));
            let text = CStr::from_ptr(by_key);
            assert_eq!((text, text.count_bytes()), (CStr::from_ptr(by_handle), len as usize), "{key:?}");
        }
        let timeout = bound(c"MSCCLPP_NCCL_TIMEOUT");
        let (mut small, mut unsigned, mut large) = (0i8, 0u32, 0i64);
        nccl.ok((nccl.ncclParamGetU32)(timeout, &raw mut unsigned));
        nccl.ok((nccl.ncclParamGetI64)(timeout, &raw mut large));
        assert_eq!((unsigned, large), (1800, 1800));
        nccl.fails((nccl.ncclParamGetI8)(timeout, &raw mut small), INVALID_ARGUMENT, "1800, which is no i8");
        let (mut bytes, mut len) = ([0u8; 16], 0);
        nccl.ok((nccl.ncclParamGet)(timeout, bytes.as_mut_ptr().cast(), 8, &raw mut len));
        assert_eq!((len, &bytes[..8]), (8, 1800i64.to_ne_bytes().as_slice()));
        let short = (nccl.ncclParamGet)(timeout, bytes.as_mut_ptr().cast(), 7, &raw mut len);
        nccl.fails(short, INVALID_ARGUMENT, "`maxLen` 7; \"MSCCLPP_NCCL_TIMEOUT\" has 8 bytes");

        let text = (nccl.ncclParamGetI64)(bound(c"NCCL_COMM_ID"), &raw mut large);
        nccl.fails(text, INVALID_ARGUMENT, "is a text");
        let unset = (nccl.ncclParamGetI64)(bound(c"NCCL_MIN_CTAS"), &raw mut large);
        nccl.fails(unset, INVALID_USAGE, "is not set");
        let mut handle = ptr::null_mut();
        let unknown = (nccl.ncclParamBind)(&raw mut handle, c"NCCL_ALGO".as_ptr());
        nccl.fails(unknown, INVALID_ARGUMENT, "\"NCCL_ALGO\", which has no effect");
        let never = (nccl.ncclParamGetI64)(ptr::without_provenance_mut(16), &raw mut large);
        nccl.fails(never, INVALID_ARGUMENT, "ncclParamBind did not give");
    }
}
