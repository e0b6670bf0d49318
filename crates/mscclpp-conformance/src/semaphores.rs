//! Semaphores as their owners see them: made, joined, mixed up, aborted.

use mscclpp_core::{BaseMemoryChannel, Connection, DeviceToDeviceSemaphore, Error, Semaphore, SemaphoreStub};

use crate::{
    Cases, Setup,
    pair::{End, Pair, assert_error, received},
};

pub(crate) const CASES: Cases = cases!["semaphores":
    two_stubs_make_a_semaphore,
    a_stub_makes_one_semaphore,
    stubs_of_different_connections_are_refused,
    an_endpoint_has_semaphores_with_itself,
    an_abort_is_sticky_and_local,
    handles_exist_where_memory_is_mapped,
];

/// Returns the stub as a peer gets it.
fn travel(stub: &SemaphoreStub) -> SemaphoreStub {
    SemaphoreStub::deserialize(&stub.serialize().expect("serializing a stub")).expect("reading a stub")
}

/// Builds a semaphore over two connections that are each other's other end. Returns it as each side has it.
pub fn build(ab: &Connection, ba: &Connection) -> (Semaphore, Semaphore) {
    let (a, b) = (SemaphoreStub::new(ab).expect("a stub"), SemaphoreStub::new(ba).expect("a stub"));
    (
        Semaphore::new(&a, &travel(&b)).expect("joining at a"),
        Semaphore::new(&b, &travel(&a)).expect("joining at b"),
    )
}

/// Builds a semaphore from a stub made here and the bytes that a peer sent.
pub(crate) fn build_from(ours: &SemaphoreStub, theirs: &[u8]) -> Semaphore {
    Semaphore::new(ours, &SemaphoreStub::deserialize(theirs).expect("reading a stub")).expect("joining")
}

fn a_stub_makes_one_semaphore(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let stub = |connection| SemaphoreStub::new(connection).expect("a stub");
    let (ours, theirs) = (stub(&pair.ab), travel(&stub(&pair.ba)));
    let first = Semaphore::new(&ours, &theirs).expect("a semaphore");
    // Two semaphores of one stub would share words, and each would count for itself.
    assert_error!(Semaphore::new(&ours, &theirs), Error::InvalidArgument(_));
    drop(first);
    assert_error!(Semaphore::new(&ours, &theirs), Error::InvalidArgument(_));
}

fn two_stubs_make_a_semaphore(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let bytes = SemaphoreStub::new(&pair.ab).expect("a stub").serialize().expect("serializing");
    assert!(bytes.len() <= 16 << 10, "a stub of {} bytes is too much to send around", bytes.len());
    let (a, b) = build(&pair.ab, &pair.ba);
    for (semaphore, connection) in [(&a, &pair.ab), (&b, &pair.ba)] {
        semaphore.check().expect("nothing has happened yet");
        assert_eq!(semaphore.connection().local_device(), connection.local_device());
        assert!(semaphore.local_memory().is_local() && !semaphore.remote_memory().is_local());
        assert!(semaphore.local_memory().transports().has(setup.transport()));
    }
}

fn stubs_of_different_connections_are_refused(setup: &dyn Setup) {
    let (one, two) = (Pair::connect(setup), Pair::connect(setup));
    let stub = |connection| SemaphoreStub::new(connection).expect("a stub");
    let (ab, ba) = (stub(&one.ab), stub(&one.ba));
    for wrong in [stub(&two.ba), stub(&two.ab), stub(&one.ab)] {
        assert_error!(Semaphore::new(&ab, &travel(&wrong)), Error::InvalidArgument(_));
    }
    assert_error!(Semaphore::new(&travel(&ab), &ba), Error::InvalidArgument(_));
    Semaphore::new(&ab, &travel(&ba)).expect("the right one still fits");
}

fn an_endpoint_has_semaphores_with_itself(setup: &dyn Setup) {
    let end = End::open(setup, 0);
    let connection =
        end.context.connect(&end.endpoint, &received(&end.endpoint)).expect("connecting with itself");
    let (first, second) = build(&connection, &connection);
    first.check().expect("alive");
    second.check().expect("alive");
}

fn an_abort_is_sticky_and_local(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let (other, _) = build(&pair.ab, &pair.ba);
    a.abort("the first reason");
    a.abort("another reason");
    for _ in 0..3 {
        let error = a.check().expect_err("aborted for ever");
        assert!(matches!(&error, Error::Aborted { reason } if reason == "the first reason"), "{error}");
    }
    b.check().expect("the peer is not told");
    other.check().expect("other semaphores live on");
    pair.ab.check().expect("so does the connection");
}

fn handles_exist_where_memory_is_mapped(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    for semaphore in [&a, &b] {
        if !setup.maps_peer_memory() {
            assert_error!(DeviceToDeviceSemaphore::new(semaphore), Error::Unreachable { .. });
            assert_error!(BaseMemoryChannel::new(semaphore), Error::Unreachable { .. });
            continue;
        }
        let handle = BaseMemoryChannel::new(semaphore).expect("a channel").device_handle();
        for pointer in [handle.inbound_token, handle.expected_inbound_token, handle.remote_inbound_token] {
            assert!(!pointer.is_null() && pointer.addr().is_multiple_of(8));
        }
        assert!(handle.outbound_lock.addr().is_multiple_of(8));
        assert!(!handle.status.is_null() && handle.status.addr().is_multiple_of(4));
    }
}
