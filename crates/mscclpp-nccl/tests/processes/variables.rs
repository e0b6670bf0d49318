//! The effects of the environment variables, each tested in processes of its own.

use std::{env, ffi::c_int, fs, path::Path, process::Command, ptr};

use crate::{
    job::{N, all_succeed, id, join, refused, start},
    support::nccl::{INVALID_USAGE, Numbers, REMOTE_ERROR, Rank, SYSTEM_ERROR, UniqueId, nccl, ranks},
};
use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{
    LIMIT, child,
    child::{hear, say},
    namespaces::without_network,
    until,
};

pub(crate) fn trials() -> Vec<Trial> {
    let succeed = |name: &'static str, variables: &'static [(&'static str, &'static str)]| {
        Trial::test(name, move || all_succeed(name, variables))
    };
    vec![
        succeed(
            "ranks_meet_at_an_address",
            &[("NCCL_COMM_ID", "127.0.0.1:PORT"), ("NCCL_SOCKET_IFNAME", "=lo")],
        ),
        succeed("interfaces_are_named_as_for_nccl", &[("NCCL_SOCKET_IFNAME", "^eth,en,docker,br,wl,ib")]),
        succeed("ranks_share_a_device_if_they_may", &[("MSCCLPP_NCCL_SAME_GPU", "1")]),
        succeed("a_communicator_that_does_not_form_in_time_is_an_error", &[("MSCCLPP_NCCL_TIMEOUT", "1")]),
        succeed("peers_whose_memory_must_not_be_reached_are_not_covered", &[("NCCL_P2P_DISABLE", "1")]),
        succeed("devices_that_reach_no_peer_memory_are_served", &[("MSCCLPP_SIM_PEER_ACCESS", "none")]),
        succeed("few_blocks_are_enough", &[("NCCL_MAX_CTAS", "1"), ("NCCL_MIN_CTAS", "1")]),
        succeed("a_malformed_variable_is_named", &[("MSCCLPP_NCCL_TIMEOUT", "soon")]),
        Trial::test("a_setting_that_differs_is_named_by_its_variable", || {
            let settings = ["MSCCLPP_NCCL_SCRATCH", "MSCCLPP_NCCL_CALLS_AT_ONCE", "MSCCLPP_CHECK_CALLS"];
            settings.into_iter().zip(["1RANK", "1RANK", "RANK"]).try_for_each(|setting| {
                all_succeed("a_setting_that_differs", &[setting, ("TEST_DIFFERS", setting.0)])
            })
        }),
        succeed("an_address_that_cannot_be_is_named_by_its_variable", &[("NCCL_COMM_ID", "nowhere")]),
        Trial::test("the_last_calls_are_written_when_the_file_appears", dump),
        Trial::test("parameters_are_written_with_the_values_that_count", parameters),
        Trial::test("a_number_of_blocks_that_is_cut_has_a_line_of_warn", cut_blocks),
        Trial::test("no_network", no_network)
            .with_ignored_flag(without_network(&quiet("no_network")).is_none()),
        Trial::test("conf_file", conf_file),
        Trial::test("lines_go_to_the_file_that_is_named", debug_file),
        Trial::test("lines_say_what_there_is_and_what_was_called", lines),
    ]
}

/// Plays a role of this module, and returns whether it is one.
pub(crate) fn run(role: &str, rank: usize) -> bool {
    match role {
        "ranks_share_a_device_if_they_may" => {
            let rank = Rank::join_on(0, rank, N, id(rank));
            rank.assert_works();
            rank.destroy();
        }
        "a_communicator_that_does_not_form_in_time_is_an_error" => {
            // The other rank never comes.
            let id = id(rank);
            if rank == 0 {
                refused(id, 0, REMOTE_ERROR, "rank");
            }
        }
        "peers_whose_memory_must_not_be_reached_are_not_covered" => {
            refused(id(rank), rank, INVALID_USAGE, "NCCL_P2P_DISABLE=1");
        }
        "a_malformed_variable_is_named" => {
            let (nccl, mut id) = (nccl(), UniqueId([0; 128]));
            // SAFETY: the function writes an id to a place for one.
            let refused = unsafe { (nccl.ncclGetUniqueId)(&raw mut id) };
            nccl.fails(refused, INVALID_USAGE, "MSCCLPP_NCCL_TIMEOUT=\"soon\"");
            if rank == 0 {
                say("no id");
            } else {
                hear();
            }
        }
        "a_setting_that_differs" => {
            let variable = env::var("TEST_DIFFERS").expect("a variable's name");
            refused(id(rank), rank, INVALID_USAGE, &format!("give all ranks the same {variable}"));
        }
        "an_address_that_cannot_be_is_named_by_its_variable" => {
            let (id, nccl, mut comm) = (id(rank), nccl(), ptr::null_mut());
            // SAFETY: the function writes a handle to a place for one.
            let refused = unsafe { (nccl.ncclCommInitRank)(&raw mut comm, N as c_int, id, rank as c_int) };
            nccl.fails(refused, INVALID_USAGE, "NCCL_COMM_ID: \"nowhere\"");
        }
        "conf_file" => {
            let (nccl, mut id) = (nccl(), UniqueId([0; 128]));
            // SAFETY: the function writes an id to a place for one.
            let refused = unsafe { (nccl.ncclGetUniqueId)(&raw mut id) };
            nccl.fails(refused, SYSTEM_ERROR, "NCCL_SOCKET_IFNAME=\"nope\"");
        }
        "no_network" => {
            let (nccl, mut id) = (nccl(), UniqueId([0; 128]));
            // SAFETY: the function writes an id to a place for one.
            let refused = unsafe { (nccl.ncclGetUniqueId)(&raw mut id) };
            nccl.fails(refused, SYSTEM_ERROR, "no network interface is up");
            nccl.fails(refused, SYSTEM_ERROR, "ip link set lo up");
        }
        "dump" => {
            let (nccl, rank) = (nccl(), join(rank));
            rank.assert_works();
            let numbers = Numbers::new(&[1f32; 64]);
            if rank.rank == 0 {
                // Rank 1 never makes this call.
                rank.all_reduce(&numbers);
            }
            say("waiting");
            hear();
            // SAFETY: the handle is that of a live communicator.
            nccl.ok(unsafe { (nccl.ncclCommAbort)(rank.comm) });
        }
        // SAFETY: the function has no arguments.
        "parameters" => unsafe { (nccl().ncclParamDumpAll)() },
        "both_ranks" => ranks(N, |rank| {
            rank.assert_works();
            rank.destroy();
        }),
        "ranks_meet_at_an_address"
        | "interfaces_are_named_as_for_nccl"
        | "devices_that_reach_no_peer_memory_are_served"
        | "few_blocks_are_enough" => {
            let rank = join(rank);
            rank.assert_works();
            rank.destroy();
        }
        _ => return false,
    }
    true
}

/// A command that runs a role without variables that cause lines.
fn quiet(role: &str) -> Command {
    let mut command = child::as_child(&[role, "0"]);
    for name in ["NCCL_DEBUG", "MSCCLPP_NCCL_DEBUG", "MSCCLPP_LOG_LEVEL", "MSCCLPP_DEBUG", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

/// Each process writes its calls, and what the other says, when the file appears; and those that an abort ends.
fn dump() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dump");
    let mut children = start("dump", &[("MSCCLPP_NCCL_DUMP", file.to_str().expect("UTF-8"))]);
    children.iter_mut().for_each(|child| child.expect("waiting"));
    let written = || -> String {
        let files = fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file").path());
        files.map(|file| fs::read_to_string(file).expect("a text")).collect()
    };
    assert_eq!(written(), "");
    fs::write(&file, "")?;
    until("what both ranks say", || {
        let text = written();
        text.contains("of rank 1 of 2: rank 0 ") && text.contains("of rank 0 of 2: rank 1 ")
    });
    children[0].tell("abort");
    children[0].expect_success();
    children[1].tell("abort");
    children[1].expect_success();
    let text = written();
    println!("{text}");
    for said in [
        "the communicator of rank 0 of 2 is asked: this rank has made 2 calls, of which call 1 is the first that is not complete",
        "  0: AllReduce(Sum) of 100 F32, stream 0x",
        " s ago: complete\n",
        "  1: AllReduce(Sum) of 64 F32, stream 0x",
        " s ago: not complete\n",
        "the communicator of rank 1 of 2 is asked: this rank has made 1 calls, and none of them waits",
        "the communicator of rank 0 of 2: rank 1 has made 1 calls, and none of them waits\n",
        "the communicator of rank 1 of 2: rank 0 has made 2 calls, of which call 1 is the first that is not complete\n",
        "the communicator of rank 0 of 2 is aborted: this rank has made 2 calls",
    ] {
        assert!(text.contains(said), "{said:?} is not there");
    }
    assert!(!text.contains("rank 1 of 2 is aborted"), "none of its calls waits");
    Ok(())
}

fn parameters() -> Result<(), Failed> {
    let mut command = quiet("parameters");
    command.env("NCCL_MAX_CTAS", "128").env("NCCL_COMM_BLOCKING", "false").env("NCCL_SOCKET_IFNAME", "=lo");
    command.env("NCCL_BUFFSIZE", "1048576");
    let output = child::output_within(LIMIT, &mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    for said in [
        "NCCL_MAX_CTAS=64",
        "MSCCLPP_NCCL_SCRATCH=32",
        "NCCL_MIN_CTAS=",
        "NCCL_COMM_BLOCKING=0",
        "NCCL_SOCKET_IFNAME==lo",
    ] {
        assert!(text.lines().any(|line| line.ends_with(&format!("] {said}"))), "{said:?} is not in {text}");
    }
    let malformed = child::output_within(LIMIT, quiet("parameters").env("NCCL_MAX_CTAS", "many"));
    assert_eq!(String::from_utf8_lossy(&malformed.stderr), "");
    Ok(())
}

fn cut_blocks() -> Result<(), Failed> {
    let said = |level: &str| {
        let mut command = quiet("both_ranks");
        command.env("NCCL_DEBUG", level).env("NCCL_MAX_CTAS", "128").env("NCCL_MIN_CTAS", "0");
        let output = child::output_within(LIMIT, &mut command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let text = said("WARN");
    for line in ["NCCL_MAX_CTAS=128 counts as 64: 1 to 64", "NCCL_MIN_CTAS=0 counts as 1: 1 to 64"] {
        assert_eq!(text.matches(line).count(), 1, "{line:?} in {text}");
    }
    let text = said("VERSION");
    assert!(!text.contains("counts as"), "{text}");
    Ok(())
}

fn no_network() -> Result<(), Failed> {
    let mut command = without_network(&quiet("no_network")).ok_or("no network namespace")?;
    let output = child::output_within(LIMIT, &mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The user's file and the one that `NCCL_CONF_FILE` names are read.
fn conf_file() -> Result<(), Failed> {
    let home = tempfile::tempdir()?;
    let file = home.path().join(".nccl.conf");
    fs::write(&file, "# of a test\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME=nope\n")?;
    let cases: [(&str, &Path); 2] = [("HOME", home.path()), ("NCCL_CONF_FILE", &file)];
    for (name, value) in cases {
        let output = child::output_within(LIMIT, quiet("conf_file").env(name, value));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("ncclGetUniqueId: NCCL_SOCKET_IFNAME"), "{text}");
    }
    Ok(())
}

fn debug_file() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let mut command = quiet("both_ranks");
    command.env("NCCL_DEBUG", "VERSION").env("NCCL_DEBUG_FILE", folder.path().join("%h.%p.log"));
    command.env("MSCCLPP_NCCL_VERSION", "22809");
    let output = child::output_within(LIMIT, &mut command);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let files: Vec<_> = fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let name = file.file_name().to_string_lossy().into_owned();
    let said = fs::read_to_string(file.path())?;
    let process = name.trim_end_matches(".log").rsplit('.').next().unwrap_or_default();
    assert!(!name.contains('%') && process.parse::<u32>().is_ok(), "{name}");
    assert!(said.starts_with(&format!("mscclpp-nccl [{process}] NCCL version 2.28.9, ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    Ok(())
}

fn lines() -> Result<(), Failed> {
    let quiet = || quiet("both_ranks");
    let mut command = quiet();
    command.env("MSCCLPP_NCCL_DEBUG", "INFO").env("NCCL_ALGO", "Ring").env("NCCL_NVLS_ENABLE", "0");
    let output = child::output_within(LIMIT, &mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success());
    for said in [
        "NCCL version 2.32.3, by mscclpp ",
        "ignored: ",
        "NCCL_ALGO",
        "NCCL_NVLS_ENABLE",
        "of rank 1 of 2: on sim device 1",
        "rank 0 by peer memory with atomics, rank 1 by this device; all_reduce by ",
        "all_reduce by ll16 up to",
        "of rank 0 of 2 was destroyed; 1 AllReduce of 400 bytes (",
    ] {
        assert!(text.contains(said), "{said:?} is not there");
    }
    let output = child::output_within(LIMIT, &mut quiet());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    Ok(())
}
