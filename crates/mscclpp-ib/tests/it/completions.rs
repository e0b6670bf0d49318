//! Tests of requests that fail: the connection fails with the first cause, names all details, and keeps that error.

use mscclpp_core::{Connection, IbConfig, IbMode, Report};
use mscclpp_test_support::{LIMIT, within};
use mscclpp_verbs_sys as sys;

use crate::{
    ends::{Pair, Words},
    world::{MODES, World},
};
use mscclpp_fake_ib::Config;

/// The statuses of reliable connections, each with its name and words of its remedy.
const STATUSES: [(sys::ibv_wc_status, &str, &str); 15] = [
    (sys::IBV_WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR", "one version"),
    (sys::IBV_WC_LOC_QP_OP_ERR, "IBV_WC_LOC_QP_OP_ERR", "kernel log"),
    (sys::IBV_WC_LOC_PROT_ERR, "IBV_WC_LOC_PROT_ERR", "freed"),
    (sys::IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR", "failed already"),
    (sys::IBV_WC_BAD_RESP_ERR, "IBV_WC_BAD_RESP_ERR", "firmware"),
    (sys::IBV_WC_LOC_ACCESS_ERR, "IBV_WC_LOC_ACCESS_ERR", "fault of the library"),
    (sys::IBV_WC_REM_INV_REQ_ERR, "IBV_WC_REM_INV_REQ_ERR", "host-no-atomic"),
    (sys::IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR", "dropped the memory"),
    (sys::IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR", "kernel log"),
    (sys::IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR", "does not answer"),
    (sys::IBV_WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR", "stopped"),
    (sys::IBV_WC_REM_ABORT_ERR, "IBV_WC_REM_ABORT_ERR", "gave the operation up"),
    (sys::IBV_WC_FATAL_ERR, "IBV_WC_FATAL_ERR", "kernel log"),
    (sys::IBV_WC_RESP_TIMEOUT_ERR, "IBV_WC_RESP_TIMEOUT_ERR", "in time"),
    (sys::IBV_WC_GENERAL_ERR, "IBV_WC_GENERAL_ERR", "gives no reason"),
];

/// Waits for the connection to fail, and returns the error. It must stay the same, whatever comes later.
pub(crate) fn first_failure(connection: &Connection) -> String {
    let failed = within(LIMIT, || connection.flush(LIMIT).is_err() && connection.check().is_err());
    assert!(failed, "nothing was noticed");
    let failure = || Report(&connection.check().expect_err("it has failed")).to_string();
    let first = failure();
    for _ in 0..3 {
        let error = connection.flush(LIMIT).expect_err("it stays failed");
        assert_eq!(Report(&error).to_string(), first, "later errors must not hide the first");
        assert_eq!(failure(), first);
    }
    first
}

fn assert_says_everything(error: &str, opcode: &str, status: &str, remedy: &str) {
    let parts =
        [opcode, status, remedy, "vendor code 0xfa", "fake0 port 1", "::ffff:10.0.0.1", "::ffff:10.0.0.2"];
    for part in parts.into_iter().chain(["rank 7"]) {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
    let numbers: Vec<_> = error
        .split("queue pair ")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next())
        .collect();
    assert!(numbers.len() >= 2 && numbers[0] != numbers[1], "both queue pairs are named: {error}");
}

/// Posts two writes and a signal, and more writes behind them, of which the `nth` fails.
fn fail(world: &World, mode: IbMode, nth: u64, status: sys::ibv_wc_status) -> String {
    let pair = world.pair(mode, IbConfig::new());
    pair.ab.set_label("rank 7");
    let (there, _back) = pair.semaphores();
    let (source, target) = (Words::new(&pair.a, 128), Words::new(&pair.b, 128));
    let theirs = target.at_peer();
    // When requests begin to be counted, the queue exists and has nothing under way.
    pair.ab.flush(LIMIT).expect("a flush");
    world.fake.fail_completion(0, nth, status);
    // Requests after the failure are refused or flushed.
    let write = |pair: &Pair| {
        let _ = pair.ab.write(&theirs, 0, &source.memory, 0, source.memory.size());
    };
    write(&pair);
    write(&pair);
    let _ = there.signal();
    (0..8).for_each(|_| write(&pair));
    let failure = first_failure(&pair.ab);
    // The peer sees nothing of the failure by itself, so it must have been notified.
    assert!(within(LIMIT, || pair.ba.check().is_err()), "the peer was not told");
    let told = pair.ba.check().expect_err("it has failed").to_string();
    assert!(told.contains("as it says") && told.contains("vendor code 0xfa"), "{told}");
    failure
}

#[test]
fn each_status_fails_the_connection_with_what_is_known() {
    for mode in MODES {
        let world = World::new(Config::new(2));
        for (status, name, remedy) in STATUSES {
            assert_says_everything(&fail(&world, mode, 2, status), "an RDMA write", name, remedy);
        }
        let signal = if mode == IbMode::Host { "an RDMA atomic add" } else { "a message" };
        let (status, name, remedy) = STATUSES[6];
        assert_says_everything(&fail(&world, mode, 3, status), signal, name, remedy);
        assert_says_everything(&fail(&world, mode, 6, status), "an RDMA write", name, remedy);
        assert_eq!(world.fake.counters().overruns, 0, "what is flushed has room too");
    }
}
