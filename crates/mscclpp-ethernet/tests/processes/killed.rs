//! Tests of two processes that reach each other, of which one is killed or stopped, or withdraws its memory.
//!
//! The other process is this program, started again; see `mscclpp_test_support::child`.

use std::{
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::Trial;
use mscclpp_core::{
    Connection, Endpoint, Error, HostToHostSemaphore, RegisteredMemory, Semaphore, SemaphoreStub,
};
use mscclpp_test_support::{
    Child, LIMIT,
    child::{hear, say},
    hex, start_waiting, unhex, until,
};
use rustix::process::Signal;

use crate::support::{self, End, Words, mix};

/// The time within which a loss must be known.
const NOTICE: Duration = Duration::from_secs(5);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("writes_and_signals_cross_processes", || done(writes_and_signals)),
        Trial::test("a_killed_peer_is_lost", || done(a_killed_peer)),
        Trial::test("a_peer_killed_in_the_middle_of_a_write_is_lost", || done(a_killed_peer_that_writes)),
        Trial::test("a_stopped_peer_is_not_lost", || done(a_stopped_peer)),
        Trial::test("memory_that_a_peer_took_away_is_refused", || done(memory_taken_away)),
    ]
}

fn done(test: fn()) -> Result<(), libtest_mimic::Failed> {
    test();
    Ok(())
}

const WORDS: usize = 10_000;
const ROUNDS: u64 = 50;

/// A process's connection to another, with a semaphore and the memories of both.
struct Meeting {
    connection: Connection,
    semaphore: HostToHostSemaphore,
    own: Words,
    theirs: RegisteredMemory,
    end: End,
}

/// Connects to the other process, which calls this too. `send` and `receive` carry text of one line.
fn meet(send: &mut dyn FnMut(&str), receive: &mut dyn FnMut() -> String) -> Meeting {
    let end = support::end();
    send(&hex(&end.endpoint.serialize().expect("an endpoint")));
    let peer = Endpoint::deserialize(&unhex(&receive())).expect("an endpoint");
    let connection = end.connect(&peer);
    let (stub, own) = (SemaphoreStub::new(&connection).expect("a stub"), Words::new(&end, WORDS));
    send(&hex(&stub.serialize().expect("a stub")));
    send(&hex(&own.memory.serialize().expect("a memory")));
    let remote = SemaphoreStub::deserialize(&unhex(&receive())).expect("a stub");
    let theirs = RegisteredMemory::deserialize(&unhex(&receive())).expect("a memory");
    let semaphore = Semaphore::new(&stub, &remote).expect("a semaphore");
    let semaphore = HostToHostSemaphore::new(&semaphore).expect("the host's side");
    Meeting { connection, semaphore, own, theirs, end }
}

fn meet_child(child: &mut Child) -> Meeting {
    let child = std::cell::RefCell::new(child);
    meet(&mut |text| child.borrow_mut().tell(text), &mut || child.borrow().next_line())
}

pub(crate) fn play(role: &str) {
    let meeting = meet(&mut |text| say(text), &mut hear);
    match role {
        "rounds" => {
            rounds(&meeting, 1);
            say("done");
            hear();
        }
        "wait" => {
            say("ready");
            hear();
        }
        "write" => {
            let source = Words::new(&meeting.end, WORDS);
            say("ready");
            loop {
                let len = source.memory.size();
                meeting.connection.write(&meeting.theirs, 0, &source.memory, 0, len).expect("a write");
                meeting.connection.flush(LIMIT).expect("a flush");
            }
        }
        "take away" => {
            let Meeting { own, connection, semaphore, .. } = meeting;
            drop(own);
            say("ready");
            // The refusal is noticed here too, because a process that waits for that peer would wait in vain.
            let error = semaphore.wait(-1).expect_err("nobody signals");
            assert!(error.to_string().contains("not registered"), "{error}");
            connection.check().expect_err("refused");
            say("noticed");
            hear();
        }
        other => panic!("no role {other}"),
    }
}

/// Writes and signals in turns. Each side checks the data that arrives.
fn rounds(meeting: &Meeting, side: u64) {
    let Meeting { connection, semaphore, own, theirs, end } = meeting;
    let source = Words::new(end, WORDS);
    let value = |side: u64, round: u64, i: usize| mix(side << 60 | round << 32 | i as u64);
    for round in 0..ROUNDS {
        (0..WORDS).for_each(|i| source.set(i, value(side, round, i)));
        connection.write(theirs, 0, &source.memory, 0, source.memory.size()).expect("a write");
        semaphore.signal().expect("a signal");
        semaphore.wait(-1).expect("a signal");
        let wrong = (0..WORDS).find(|i| own.at(*i) != value(1 - side, round, *i));
        assert_eq!(wrong, None, "round {round}");
        connection.flush(LIMIT).expect("a flush");
        semaphore.signal().expect("a signal");
        semaphore.wait(-1).expect("a signal");
    }
}

fn writes_and_signals() {
    let mut child = Child::start(&["rounds"]);
    let meeting = meet_child(&mut child);
    rounds(&meeting, 0);
    child.expect("done");
    child.tell("go");
    child.expect_success();
    until("the goodbye", || meeting.connection.check().is_err());
    let error = meeting.connection.check().expect_err("it has left");
    assert!(matches!(error, Error::PeerClosed { .. }), "{error}");
}

fn expect_loss(meeting: &Meeting, killed: Instant) {
    until("the loss", || meeting.connection.check().is_err());
    let after = killed.elapsed();
    assert!(after < 10 * NOTICE, "the loss was noticed after {after:?}");
    let error = meeting.connection.check().expect_err("it was killed");
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
}

fn a_killed_peer() {
    let mut child = Child::start(&["wait"]);
    let meeting = meet_child(&mut child);
    child.expect("ready");
    thread::scope(|scope| {
        let waiting = start_waiting(scope, || meeting.semaphore.wait(-1).expect_err("nobody signals"));
        let killed = Instant::now();
        child.kill();
        let error = waiting.join().expect("a wait that ends");
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        expect_loss(&meeting, killed);
    });
    let source = Words::new(&meeting.end, 1);
    meeting.connection.write(&meeting.theirs, 0, &source.memory, 0, 8).expect_err("a write to nobody");
    meeting.connection.flush(LIMIT).expect_err("a flush to nobody");
}

fn a_killed_peer_that_writes() {
    let mut child = Child::start(&["write"]);
    let meeting = meet_child(&mut child);
    child.expect("ready");
    // This side writes too, more than the network and the sockets hold.
    let big = Words::new(&meeting.end, WORDS);
    for _ in 0..200 {
        meeting.connection.write(&meeting.theirs, 0, &big.memory, 0, 8 * WORDS as u64).expect("a write");
    }
    let killed = Instant::now();
    child.kill();
    let error = loop {
        let written = meeting.connection.write(&meeting.theirs, 0, &big.memory, 0, 8 * WORDS as u64);
        if let Err(error) = written.and_then(|()| meeting.connection.flush(LIMIT)) {
            break error;
        }
    };
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    expect_loss(&meeting, killed);
}

/// A stopped peer is not a failure, however long it is stopped; afterwards everything continues.
fn a_stopped_peer() {
    let mut child = Child::start(&["wait"]);
    let meeting = meet_child(&mut child);
    child.expect("ready");
    let big = Words::new(&meeting.end, WORDS);
    // The first operation opens the connection's queue, which needs a peer that answers.
    meeting.connection.write(&meeting.theirs, 0, &big.memory, 0, 8).expect("a write");
    meeting.connection.flush(LIMIT).expect("a flush");
    child.signal(Signal::STOP);
    for _ in 0..200 {
        meeting.connection.write(&meeting.theirs, 0, &big.memory, 0, 8 * WORDS as u64).expect("a write");
    }
    let flushed = meeting.connection.flush(NOTICE + Duration::from_secs(1));
    assert!(matches!(flushed, Err(Error::Timeout { .. })), "{flushed:?}");
    meeting.connection.check().expect("a stopped process is not a dead one");
    child.signal(Signal::CONT);
    meeting.connection.flush(LIMIT).expect("it goes on");
    child.tell("go");
    child.expect_success();
}

fn memory_taken_away() {
    let mut child = Child::start(&["take away"]);
    let meeting = meet_child(&mut child);
    child.expect("ready");
    let source = Words::new(&meeting.end, 1);
    let written = meeting.connection.write(&meeting.theirs, 0, &source.memory, 0, 8);
    let flushed = written.and_then(|()| meeting.connection.flush(LIMIT));
    let error = flushed.expect_err("the memory is gone").to_string();
    assert!(error.contains("refused what was sent") && error.contains("not registered"), "{error}");
    child.expect("noticed");
    child.tell("go");
    child.expect_success();
}
