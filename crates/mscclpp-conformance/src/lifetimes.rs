//! Lifetimes: objects are dropped in any order, on either side.

use mscclpp_core::{
    Connection, Context, Endpoint, Error, LinkMonitor, RegisteredMemory, Semaphore, SemaphoreStub,
};

use crate::{
    Cases, Setup,
    pair::{End, PATIENCE, Pair, SharedMemory, assert_error, eventually, received, within},
    semaphores::build,
};

pub(crate) const CASES: Cases = cases!["lifetimes":
    one_sides_objects_drop_in_any_order,
    both_sides_objects_drop_in_any_order,
    a_write_under_way_survives_its_objects,
    a_peer_that_closed_is_noticed,
    a_peer_that_failed_says_why,
    a_semaphore_does_not_keep_the_peers_side_open,
];

/// Checks that only the peer that is told of a failure learns of it, however long and odd the reason.
fn a_peer_that_failed_says_why(setup: &dyn Setup) {
    let reasons = [
        (
            "proxy: offset 4000 + 1024 is past the end",
            "rank 0's proxy: offset 4000 + 1024 is past the end (as it says)",
        ),
        ("", "rank 0's  (as it says)"),
        ("two\nlines \u{1b}[2J\u{e9}", "rank 0's two\\nlines \\u{1b}[2J\u{e9} (as it says)"),
    ];
    let long = format!("{}\u{e9}\u{e9}", "x".repeat(LinkMonitor::MAX_REASON - 1));
    let cut = format!("rank 0's {} (as it says)", "x".repeat(LinkMonitor::MAX_REASON - 1));
    for (said, heard) in reasons.into_iter().chain([(&*long, &*cut)]) {
        let pair = Pair::connect(setup);
        pair.ba.set_label("rank 0");
        let third = End::open(setup, 1);
        let to_third =
            pair.a.context.connect(&pair.a.endpoint, &received(&third.endpoint)).expect("a to a third");
        let from_third =
            third.context.connect(&third.endpoint, &received(&pair.a.endpoint)).expect("a third to a");
        let (_, semaphore) = build(&pair.ab, &pair.ba);
        pair.ab.tell_failure(said);
        assert!(eventually(PATIENCE, || pair.ba.check().is_err()), "the peer is not told");
        let error = pair.ba.check().expect_err("it has failed");
        assert!(matches!(error, Error::PeerFailed { .. }), "{error}");
        assert_eq!(error.to_string(), heard);
        assert_eq!(semaphore.check().expect_err("its waits have ended").to_string(), heard);
        pair.ab.check().expect("who tells goes on");
        // This travels the same way, so an earlier message would have come by now.
        to_third.tell_failure("told later");
        assert!(eventually(PATIENCE, || from_third.check().is_err()), "the third is not told");
        let error = from_third.check().expect_err("it has failed").to_string();
        assert!(error.contains("told later"), "it was told of another: {error}");
    }
}

/// Returns all orders of `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    shorter
        .iter()
        .flat_map(|order| (0..n).map(|at| [&order[..at], &[n - 1], &order[at..]].concat()))
        .collect()
}

/// The objects that one side holds; each may be dropped at any time.
struct Holdings {
    context: Option<Context>,
    endpoint: Option<Endpoint>,
    connection: Option<Connection>,
    memory: Option<RegisteredMemory>,
    semaphore: Option<Semaphore>,
}

impl Holdings {
    const KINDS: usize = 5;

    fn drop_kind(&mut self, kind: usize) {
        match kind {
            0 => self.context = None,
            1 => self.endpoint = None,
            2 => self.connection = None,
            3 => self.memory = None,
            _ => self.semaphore = None,
        }
    }

    /// Checks that the objects that are left work.
    fn exercise(&self, source: &SharedMemory) {
        if let Some(connection) = &self.connection {
            connection.check().expect("the connection is alive");
            if let Some(memory) = &self.memory {
                connection.write(memory, 0, &source.memory, 0, 64).expect("write");
            }
            connection.flush(PATIENCE).expect("flush");
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.serialize().expect("serializing");
        }
        if let Some(semaphore) = &self.semaphore {
            semaphore.check().expect("the semaphore is alive");
            semaphore.connection().check().expect("its connection is alive");
        }
    }
}

fn one_sides_objects_drop_in_any_order(setup: &dyn Setup) {
    let b = End::open(setup, 1);
    let target = b.share(64);
    for order in permutations(Holdings::KINDS) {
        let a = End::open(setup, 0);
        let source = a.share(64);
        let connection = a.context.connect(&a.endpoint, &received(&b.endpoint)).expect("connecting");
        let back = b.context.connect(&b.endpoint, &received(&a.endpoint)).expect("connecting back");
        let mut held = Holdings {
            context: Some(a.context),
            endpoint: Some(a.endpoint),
            memory: Some(target.at_peer.clone()),
            semaphore: Some(build(&connection, &back).0),
            connection: Some(connection),
        };
        within(PATIENCE, "dropping one side's objects", move || {
            for kind in order {
                held.drop_kind(kind);
                held.exercise(&source);
            }
        });
    }
}

fn both_sides_objects_drop_in_any_order(setup: &dyn Setup) {
    for order in permutations(6) {
        let Pair { a, b, ab, ba } = Pair::connect(setup);
        let (sa, sb) = build(&ab, &ba);
        let mut held: [Option<Box<dyn Send>>; 6] = [
            Some(Box::new((a.context, a.endpoint))),
            Some(Box::new((b.context, b.endpoint))),
            Some(Box::new(ab)),
            Some(Box::new(ba)),
            Some(Box::new(sa)),
            Some(Box::new(sb)),
        ];
        within(PATIENCE, "dropping both sides' objects", move || {
            order.into_iter().for_each(|i| held[i] = None);
        });
    }
}

fn a_write_under_way_survives_its_objects(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    for _ in 0..10 {
        let (source, target) = (pair.a.share(1 << 20), pair.b.share(1 << 20));
        pair.ab.write(&target.at_peer, 0, &source.memory, 0, 1 << 20).expect("write");
        drop((source, target.at_peer));
        pair.ab.flush(PATIENCE).expect("flush");
    }
    let (source, target) = (pair.a.share(1 << 20), pair.b.share(1 << 20));
    pair.ab.write(&target.at_peer, 0, &source.memory, 0, 1 << 20).expect("write");
    within(PATIENCE, "dropping all while a write is under way", move || {
        drop(pair);
        drop((source, target));
    });
}

/// Checks that the connection fails, that its error names the peer and the reason, and that its semaphores fail too.
fn a_peer_that_closed_is_noticed(setup: &dyn Setup) {
    let Pair { a, b, ab, ba } = Pair::connect(setup);
    let (ours, theirs) = build(&ab, &ba);
    let target = b.share(64);
    let source = a.share(64);
    ab.set_label("rank 1");
    within(PATIENCE, "closing one side", move || drop((theirs, ba, b)));
    assert!(eventually(PATIENCE, || ab.check().is_err()), "nobody noticed that the peer is gone");
    let error = ab.check().expect_err("the connection has failed");
    assert_error!(ab.check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
    assert!(error.to_string().contains("rank 1"), "the error does not name the peer: {error}");
    assert_error!(ours.check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
    for _ in 0..2 {
        assert!(
            ab.write(&target.at_peer, 0, &source.memory, 0, 64).is_err(),
            "a write to a peer that is gone"
        );
        assert!(
            ab.update_and_sync(&target.at_peer, 0, &mut 0, 1).is_err(),
            "an update of a peer that is gone"
        );
        assert!(ab.flush(PATIENCE).is_err(), "a flush of a connection that failed");
        assert!(SemaphoreStub::new(&ab).is_err(), "a semaphore over a connection that failed");
    }
}

/// Checks this even with both sides in one process and stubs that are passed on without being serialized.
fn a_semaphore_does_not_keep_the_peers_side_open(setup: &dyn Setup) {
    let Pair { a, b, ab, ba } = Pair::connect(setup);
    let (ours, theirs) = (SemaphoreStub::new(&ab).expect("a stub"), SemaphoreStub::new(&ba).expect("a stub"));
    let semaphore = Semaphore::new(&ours, &theirs).expect("joining");
    let closed = ba.downgrade();
    drop((theirs, ba, b));
    assert!(closed.is_closed(), "a semaphore keeps the peer's connection open");
    assert!(eventually(PATIENCE, || ab.check().is_err()), "nobody noticed that the peer is gone");
    assert_error!(semaphore.check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
    drop(a);
}
