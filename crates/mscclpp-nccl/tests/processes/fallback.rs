//! Communicators that are not covered go to NCCL: here, to a library that stands in for it (`fake_nccl.c`).

use std::{ffi::c_int, path::PathBuf, process::Command, ptr};

use libloading::os::unix::Library;
use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{Child, child, until};

use crate::{
    job::{N, id},
    support::nccl::{
        CollConfig, Config, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Numbers, Rank, SUCCESS, UniqueId,
        nccl,
    },
};

const F32: c_int = 7;

pub(crate) fn trials() -> Vec<Trial> {
    let fake = has_fake();
    vec![
        trial(
            "ranks_of_several_nodes_go_to_nccl",
            fake,
            |_| fake_path(),
            |said| {
                assert!(
                    said.contains(
                        "goes to NCCL 22899 (MSCCLPP_NCCL_FALLBACK): the ranks are on several nodes"
                    ),
                    "{said}"
                );
            },
        ),
        trial("an_abort_while_nccl_forms_a_communicator_is_passed_on", fake, |_| fake_path(), |_| ()),
        trial(
            "all_ranks_need_an_nccl",
            fake,
            |rank| if rank == 0 { fake_path() } else { PathBuf::new() },
            |_| (),
        ),
        trial("an_nccl_that_is_not_there_is_named", fake, |_| "/nowhere/libnccl.so.2".into(), |_| ()),
    ]
}

fn fake_path() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libfake_nccl.so")
}

/// Compiles the library, and returns whether there is a C compiler that can.
fn has_fake() -> bool {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/processes/fake_nccl.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(fake_path())
        .arg(source)
        .status();
    built.is_ok_and(|status| status.success())
}

fn trial(name: &'static str, has_fake: bool, path: fn(usize) -> PathBuf, check: fn(&str)) -> Trial {
    Trial::test(name, move || -> Result<(), Failed> {
        let log = fake_path().with_file_name(format!("{name}.log"));
        let command = |rank: usize| {
            let mut command = child::this_program();
            let file = std::fs::File::create(log.with_extension(rank.to_string())).expect("a file");
            command
                .env("MSCCLPP_HOSTID", format!("node {rank}"))
                .env("MSCCLPP_NCCL_FALLBACK", path(rank))
                .stderr(file);
            command
        };
        let mut children: Vec<Child> =
            (0..N).map(|rank| Child::start_by(command(rank), &[name, &rank.to_string()])).collect();
        let id = children[0].next_line();
        children[1].tell(&id);
        children.iter_mut().for_each(Child::expect_success);
        for rank in 0..N {
            check(&std::fs::read_to_string(log.with_extension(rank.to_string())).expect("what it said"));
        }
        Ok(())
    })
    .with_ignored_flag(!has_fake)
}

/// Plays a role of this module, and returns whether it is one.
pub(crate) fn run(role: &str, rank: usize) -> bool {
    match role {
        "ranks_of_several_nodes_go_to_nccl" => every_call_goes_to_nccl(&Rank::join(rank, N, id(rank))),
        "an_abort_while_nccl_forms_a_communicator_is_passed_on" => an_abort_is_passed_on(id(rank), rank),
        "all_ranks_need_an_nccl" | "an_nccl_that_is_not_there_is_named" => {
            let (id, nccl) = (id(rank), nccl());
            nccl.set_device(rank);
            let mut comm = ptr::null_mut();
            // SAFETY: the function writes a handle to a place for one.
            let refused = unsafe { (nccl.ncclCommInitRank)(&raw mut comm, N as c_int, id, rank as c_int) };
            if role == "all_ranks_need_an_nccl" {
                nccl.fails(refused, INVALID_USAGE, "rank 1 has none");
            } else {
                // Rank 0 fails first; rank 1 gets the message that rank 0 gave up.
                assert_ne!(refused, SUCCESS);
                assert!(nccl.last_error(comm).contains("/nowhere/libnccl.so.2"), "{}", nccl.last_error(comm));
            }
        }
        _ => return false,
    }
    true
}

fn every_call_goes_to_nccl(rank: &Rank) {
    let (nccl, comm, stream) = (nccl(), rank.comm, rank.stream.0);
    let (from, to) = (Numbers::new(&[0f32; 4]), Numbers::new(&[0f32; 4]));
    let (p, q) = (from.ptr(), to.ptr());
    let says = |code: c_int, number: f32| {
        nccl.ok(code);
        assert_eq!(to.read()[0], number);
    };
    // SAFETY: the memory has the size that the calls name; the fake writes it before it returns.
    unsafe {
        says((nccl.ncclAllReduce)(p, q, 4, F32, 0, comm, stream), 1.0);
        says((nccl.ncclReduce)(p, q, 4, F32, 0, 1, comm, stream), 3.0);
        says((nccl.ncclReduceScatter)(p, q, 4, F32, 0, comm, stream), 4.0);
        says((nccl.ncclAllGather)(p, q, 4, F32, comm, stream), 5.0);
        says((nccl.ncclAlltoAll)(p, q, 4, F32, comm, stream), 6.0);
        says((nccl.ncclBroadcast)(p, q, 4, F32, 1, comm, stream), 8.0);
        says((nccl.ncclBcast)(q, 4, F32, 0, comm, stream), 7.0);
        says((nccl.ncclGather)(p, q, 4, F32, 1, comm, stream), 10.0);
        says((nccl.ncclScatter)(p, q, 4, F32, 1, comm, stream), 12.0);
        // A configuration is checked, and NCCL makes the plain call.
        let mut config = CollConfig { min_ctas: 2, ..CollConfig::INITIAL };
        says((nccl.ncclAllGatherConfig)(p, q, 4, F32, comm, stream, &raw const config), 5.0);
        config.min_ctas = 0;
        let wrong = (nccl.ncclAllGatherConfig)(p, q, 4, F32, comm, stream, &raw const config);
        nccl.fails(wrong, INVALID_ARGUMENT, "minCTAs is 0");
        nccl.ok((nccl.ncclGroupStart)());
        nccl.ok((nccl.ncclSend)(p, 4, F32, 1, comm, stream));
        nccl.ok((nccl.ncclRecv)(q, 4, F32, 1, comm, stream));
        says((nccl.ncclGroupEnd)(), 14.0);
        nccl.fails((nccl.ncclAllReduce)(p, q, 4, 3, 0, comm, stream), INVALID_ARGUMENT, "the fake says so");

        let (mut op, mut factor, mut window) = (0, 2f32, ptr::null_mut());
        nccl.ok((nccl.ncclRedOpCreatePreMulSum)(&raw mut op, (&raw mut factor).cast(), F32, 1, comm));
        assert_eq!(op, 77);
        nccl.ok((nccl.ncclRedOpDestroy)(op, comm));
        let refused = (nccl.ncclCommWindowRegister)(comm, p, 16, &raw mut window, 0);
        nccl.fails(refused, INVALID_USAGE, "not covered");
        let (mut bytes, mut id) = (0, UniqueId([0; 128]));
        for refused in [
            (nccl.ncclCommMemStats)(comm, 3, &raw mut bytes),
            (nccl.ncclCommSuspend)(comm, 1),
            (nccl.ncclCommGetUniqueId)(comm, &raw mut id),
            (nccl.ncclCommGrow)(comm, 3, ptr::null(), -1, &raw mut window, ptr::null_mut()),
        ] {
            assert_eq!(refused, INVALID_USAGE);
        }
        nccl.fails(INVALID_USAGE, INVALID_USAGE, "not covered: a communicator that NCCL has");
        assert_eq!(nccl.state(comm), SUCCESS);

        let (mut split, mut count) = (ptr::null_mut(), 0);
        nccl.ok((nccl.ncclCommSplit)(comm, -1, 0, &raw mut split, ptr::null_mut()));
        assert!(split.is_null());
        says((nccl.ncclAllReduce)(p, q, 4, F32, 0, comm, stream), 1.0);
        nccl.ok((nccl.ncclCommSplit)(comm, rank.rank as c_int, 0, &raw mut split, ptr::null_mut()));
        nccl.ok((nccl.ncclCommCount)(split, &raw mut count));
        assert_eq!(count, 1);
        // Calls for several communicators go to NCCL in one group: if a thread has several ranks, NCCL connects them at its end.
        nccl.ok((nccl.ncclGroupStart)());
        nccl.ok((nccl.ncclAllReduce)(p, p, 4, F32, 0, comm, stream));
        nccl.ok((nccl.ncclAllReduce)(p, q, 4, F32, 0, split, stream));
        says((nccl.ncclGroupEnd)(), 101.0);
        nccl.ok((nccl.ncclCommAbort)(split));
        nccl.ok((nccl.ncclCommFinalize)(comm));
        nccl.ok((nccl.ncclCommDestroy)(comm));
    }
}

fn an_abort_is_passed_on(id: UniqueId, rank: usize) {
    let (nccl, mut comm, mut config) = (nccl(), ptr::null_mut(), Config::NOT_BLOCKING);
    nccl.set_device(rank);
    // SAFETY: the file is the fake, which does nothing when it is loaded. Its numbers live as long as it is loaded.
    unsafe {
        let fake = Library::new(fake_path()).expect("the fake");
        let number = |name: &str| *fake.get::<*mut c_int>(name.as_bytes()).expect("a number of the fake");
        let [waits, forming, aborts] = ["waits", "forming", "aborts"].map(number);
        waits.write_volatile((rank == 0).into());
        let code =
            (nccl.ncclCommInitRankConfig)(&raw mut comm, N as c_int, id, rank as c_int, &raw mut config);
        assert_eq!(code, IN_PROGRESS);
        if rank == 1 {
            // NCCL forms it here, unless rank 0 has told of its abort before.
            until("the communicator", || nccl.state(comm) != IN_PROGRESS);
            nccl.ok((nccl.ncclCommAbort)(comm));
            return;
        }
        until("NCCL to form it", || forming.read_volatile() == 1);
        nccl.ok((nccl.ncclCommAbort)(comm));
        assert_eq!(aborts.read_volatile(), 0, "NCCL has no communicator yet");
        waits.write_volatile(0);
        until("NCCL's abort", || aborts.read_volatile() == 1);
    }
}
