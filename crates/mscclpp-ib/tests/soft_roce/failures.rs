//! Tests of failures: each is an error with its cause, within ten seconds, and the first error stays.

use std::time::{Duration, Instant};

use mscclpp_core::{Connection, Endpoint, Error, IbMode, RegisteredMemory, Transport};
use mscclpp_test_support::{
    Child,
    child::{await_end, hear, say},
    hex, unhex, until, within,
};

use crate::{
    Case,
    ends::{self, Words},
    limits::run,
};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("a_wrong_key_is_told_with_its_cause", a_wrong_key_is_told_with_its_cause),
    ("a_killed_peer_is_lost_in_mid_write", a_killed_peer_is_lost_in_mid_write),
    ("a_port_that_goes_down_is_told", a_port_that_goes_down_is_told),
    ("a_device_that_is_removed_is_told", a_device_that_is_removed_is_told),
];

/// The role of the process that is killed.
pub(crate) const PEER: &str = "peer";
const NOTICE: Duration = Duration::from_secs(10);
const FLUSH: Duration = Duration::from_secs(30);

/// Waits until the connection has failed, and returns the error. `meanwhile` is called repeatedly. The error must
/// stay the same.
fn failure(connection: &Connection, mut meanwhile: impl FnMut()) -> Error {
    let began = Instant::now();
    let failed = within(NOTICE, || {
        meanwhile();
        connection.check().is_err()
    });
    assert!(failed, "nothing was noticed within {NOTICE:?}");
    let error = connection.check().expect_err("it has failed");
    println!("noticed after {:?}: {error}", began.elapsed());
    let first = error.to_string();
    let again = connection.flush(FLUSH).expect_err("it stays failed");
    assert_eq!(again.to_string(), first, "later errors must not hide the first");
    error
}

fn a_wrong_key_is_told_with_its_cause(mode: IbMode) {
    let pair = ends::pair(mode);
    let (source, target) = (Words::new(&pair.a, 64), Words::new(&pair.b, 64));
    let mut bytes = target.memory.serialize().expect("serializing");
    // The transport's part consists of magic, version, id, address, length, and then the keys.
    let part = bytes.windows(4).position(|window| window == b"MSIB").expect("the transport's part");
    for byte in &mut bytes[part + 32..part + 40] {
        *byte ^= 0x5a;
    }
    let forged = RegisteredMemory::deserialize(&bytes).expect("well-formed");
    pair.ab.write(&forged, 0, &source.memory, 0, 64).expect("a write is only begun");
    let _ = pair.ab.flush(FLUSH);
    let error = failure(&pair.ab, || {}).to_string();
    for part in
        ["IBV_WC_REM_ACCESS_ERR", "RDMA write", "rxe0 port 1", "::ffff:10.77.0.2", "dropped the memory"]
    {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
    assert_eq!(target.all_hold(0), Ok(()), "nothing was written");
}

/// Connects to the endpoint that it is given, and stays until it is killed.
pub(crate) fn play_the_peer() {
    let end = ends::end(Transport::IB1, IbMode::Default);
    let words = Words::new(&end, 1 << 20);
    say(&hex(&end.endpoint.serialize().expect("an endpoint")));
    say(&hex(&words.memory.serialize().expect("a memory")));
    let peer = Endpoint::deserialize(&unhex(&hear())).expect("an endpoint");
    let _connection = end.connect(&peer);
    say("connected");
    await_end();
}

fn a_killed_peer_is_lost_in_mid_write(mode: IbMode) {
    let end = ends::end(Transport::IB0, mode);
    let mut child = Child::start(&[PEER]);
    let endpoint = Endpoint::deserialize(&unhex(&child.next_line())).expect("an endpoint");
    let theirs = RegisteredMemory::deserialize(&unhex(&child.next_line())).expect("a memory");
    child.tell(&hex(&end.endpoint.serialize().expect("an endpoint")));
    child.expect("connected");
    let connection = end.connect(&endpoint);
    let source = Words::new(&end, 1 << 20);
    connection.write(&theirs, 0, &source.memory, 0, 8).expect("a write");
    connection.flush(FLUSH).expect("a flush");
    for _ in 0..8 {
        connection.write(&theirs, 0, &source.memory, 0, source.memory.size()).expect("a write");
    }
    child.kill();
    let error = failure(&connection, || {});
    assert!(matches!(error, Error::PeerLost { .. } | Error::Transport(_)), "{error}");
}

fn a_port_that_goes_down_is_told(mode: IbMode) {
    let pair = ends::pair(mode);
    let (source, target) = (Words::new(&pair.a, 64), Words::new(&pair.b, 64));
    pair.ab.write(&target.at_peer(), 0, &source.memory, 0, 64).expect("a write");
    pair.ab.flush(FLUSH).expect("a flush");
    run("ip link set net0 down");
    let error = failure(&pair.ab, || {}).to_string();
    run("ip link set net0 up");
    // The interfaces are the two ends of one link, so both ports go down, and the peer may tell of its port first.
    assert!(
        ["rxe0: port 1 went down", "rxe1: port 1 went down"].iter().any(|part| error.contains(part)),
        "{error}"
    );
    // The node's addresses went with the interface, and so did the GIDs that follow from them.
    run("ip addr replace fd77::1/64 dev net0 nodad");
    until("the port works again", || works(mode));
}

fn a_device_that_is_removed_is_told(mode: IbMode) {
    let pair = ends::pair(mode);
    let (source, target) = (Words::new(&pair.b, 64), Words::new(&pair.a, 64));
    let theirs = target.at_peer();
    pair.ba.write(&theirs, 0, &source.memory, 0, 64).expect("a write");
    pair.ba.flush(FLUSH).expect("a flush");
    // The command runs in the background, because the kernel waits until nobody uses the device any more.
    run("rdma link delete rxe1 > /dev/null 2>&1 &");
    let _again = AddAgain(mode);
    let error = failure(&pair.ba, || {}).to_string();
    assert!(error.contains("rxe1") && error.contains("removed"), "{error}");
    drop((source, target, pair));
}

/// Waits until the second device is gone, and adds it again.
struct AddAgain(IbMode);

impl Drop for AddAgain {
    fn drop(&mut self) {
        until("the device is gone", || !std::path::Path::new("/sys/class/infiniband/rxe1").exists());
        run("rdma link add rxe1 type rxe netdev net1");
        until("there is a device again", || works(self.0));
    }
}

/// Returns whether data gets from one device to the other.
fn works(mode: IbMode) -> bool {
    let attempt = || {
        let pair = ends::pair(mode);
        let (source, target) = (Words::new(&pair.a, 1), Words::new(&pair.b, 1));
        source.fill(3);
        pair.ab.write(&target.at_peer(), 0, &source.memory, 0, 8).ok()?;
        pair.ab.flush(Duration::from_secs(5)).ok()?;
        target.all_hold(3).ok()
    };
    std::panic::catch_unwind(attempt).is_ok_and(|done| done.is_some())
}
