//! A rank without its thread: the tests hand it what its sockets have, in an order that a job seldom meets.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::fuzzing::RawRank;
use crate::inbox::Inbox;
use crate::protocol::frame::{self, Kind, MAX_PAYLOAD};
use crate::protocol::hello::Purpose;
use crate::protocol::roster::Roster;
use crate::protocol::table::Entry;
use crate::tcp::connection::Link;
use crate::tcp::socket;

/// Rank 0 of four, while ranks are missing.
fn rank_0() -> Service {
    let plan = Plan {
        rank: 0,
        n_ranks: 4,
        key: JobKey::none(),
        job: Some([5; 16]),
        timeout: Duration::from_secs(600),
        deadline: Instant::now() + Duration::from_secs(600),
        by_address: true,
        launched: None,
        log_after: Duration::MAX,
    };
    let root = Entry { host: [1; 16], domain: [1; 16], port: 1, addresses: vec![] };
    let formation = Formation::of_root(Roster::new([5; 16], "127.0.0.1:1".to_owned(), 4, root));
    let shared = Arc::new(Shared::new(Arc::new(Inbox::default())).unwrap());
    Service::new(plan, shared, None, formation).unwrap()
}

/// A connection in `phase`, and its other end.
fn connected(service: &mut Service, phase: Phase) -> (u64, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, from) = socket::accept(&listener).unwrap().unwrap();
    let token = service.enter(Connection::new(ours, from, phase, None)).unwrap();
    (token, theirs)
}

/// A link to a rank, and its other end.
fn linked(service: &mut Service, peer: usize) -> (u64, TcpStream) {
    let (token, theirs) = connected(service, Phase::Leaving);
    if let Some(connection) = service.connections.get_mut(&token) {
        connection.reader.set_limit(MAX_PAYLOAD);
    }
    service.link_up(token, Link { peer, ours: false, retire_sent: false, retire_received: false });
    (token, theirs)
}

/// Sends bytes to a connection, and waits until they are there.
fn arrive(service: &Service, token: u64, mut theirs: &TcpStream, bytes: &[u8]) {
    theirs.write_all(bytes).unwrap();
    let stream = service.connections[&token].stream();
    stream.set_nonblocking(false).unwrap();
    let mut seen = vec![0; bytes.len()];
    while stream.peek(&mut seen).unwrap() < bytes.len() {}
    stream.set_nonblocking(true).unwrap();
}

fn goodbye() -> Vec<u8> {
    frame::encode(Kind::Goodbye, &0_u64.to_le_bytes())
}

#[test]
fn a_goodbye_is_heard_though_writing_fails_while_another_connection_is_read() {
    let mut service = rank_0();
    let (link, leaver) = linked(&mut service, 2);
    arrive(&service, link, &leaver, &goodbye());
    // What is written to it from here on fails, and there is something to write.
    service.write_dirty();
    let connection = service.connections.get_mut(&link).unwrap();
    connection.finish_writing();
    connection.outbox.push(frame::encode(Kind::Credit, &0_u32.to_le_bytes()));
    service.mark_dirty(link);

    // A rank that is one too many, which rank 0 tells at once: it writes to all while it reads from one.
    let (phase, challenge) = service.challenge_peer().unwrap();
    let (stranger, stream) = connected(&mut service, phase);
    let proof = RawRank::without_key(4, 4).on_bytes(&challenge).unwrap();
    arrive(&service, stranger, &stream, &proof);
    service.on_readable(stranger);

    assert!(!service.connections.contains_key(&link));
    assert!(matches!(service.shared.inbox.gone(2), Some(Error::PeerClosed { rank: 2 })));
    assert!(!matches!(service.failed, Some(Error::PeerLost { .. })), "{:?}", service.failed);
}

#[test]
fn no_attempt_is_left_without_a_deadline_when_its_rank_leaves() {
    let mut service = rank_0();
    let (link, leaver) = linked(&mut service, 2);
    // It accepts, and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let now = Instant::now();
    let candidates = vec![silent.local_addr().unwrap()];
    service.dial(2, Dial::new(Purpose::Peer, candidates, now, now + Duration::from_secs(600)));
    assert_eq!(service.connections.len(), 2);

    arrive(&service, link, &leaver, &goodbye());
    service.on_readable(link);
    assert!(service.dials.is_empty() && service.connections.is_empty());
}

#[test]
fn a_stranger_is_ended_in_time_though_an_older_one_has_gone() {
    let mut service = rank_0();
    let now = Instant::now();
    let [(older, _leaves), (younger, _stays)] = [1, 2].map(|seconds| {
        let (phase, _) = service.challenge_peer().unwrap();
        let (token, stream) = connected(&mut service, phase);
        service.connections.get_mut(&token).unwrap().deadline = Some(now + Duration::from_secs(seconds));
        service.unproven.push_back(token);
        (token, stream)
    });
    service.remove(older);
    assert_eq!(service.wake_at(), service.connections[&younger].deadline);
}

#[test]
fn who_is_refused_again_and_again_is_noted_once() {
    let mut service = rank_0();
    for port in 0..100 {
        service.note_refusal(([10, 0, 0, 1], port).into(), "was refused: it has no key".to_owned());
    }
    service.note_refusal(([10, 0, 0, 2], 1).into(), "was refused: it has no key".to_owned());
    service.note_refusal(([10, 0, 0, 1], 1).into(), "was refused: its key is not this job's".to_owned());
    assert_eq!(service.notes.len(), 3);
}

/// What is logged on this thread meanwhile.
fn logged(run: impl FnOnce()) -> String {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(writer)).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, run);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_refused_key_is_said_at_once_with_who_has_it() {
    let mut service = rank_0();
    service.plan.key = JobKey::of_secret("swordfish");
    let (phase, challenge) = service.challenge_peer().unwrap();
    let (stranger, stream) = connected(&mut service, phase);
    let proof = RawRank::of_secret("octopus", 4, 3).on_bytes(&challenge).unwrap();
    arrive(&service, stranger, &stream, &proof);
    let text = logged(|| service.on_readable(stranger));
    let process = format!("it says that it is rank 3, process {} on host ", std::process::id());
    let error = text.lines().find(|line| line.contains("ERROR")).unwrap_or_else(|| panic!("{text}"));
    for part in ["127.0.0.1", "its key is not this job's", &process, "MSCCLPP_BOOTSTRAP_SECRET"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(service.notes.len(), 1, "and a time-out says it again");
}

/// Both are let in before either says more, which tells of both.
#[test]
fn a_rank_that_came_twice_is_said_at_once_with_both() {
    let mut service = rank_0();
    let tokens: Vec<_> = (0..2)
        .map(|_| {
            let (phase, challenge) = service.challenge_peer().unwrap();
            let (token, stream) = connected(&mut service, phase);
            let proof = RawRank::without_key(4, 3).on_bytes(&challenge).unwrap();
            arrive(&service, token, &stream, &proof);
            service.on_readable(token);
            (token, stream)
        })
        .collect();
    let entry = Entry { host: [1; 16], domain: [1; 16], port: 1, addresses: vec![] };
    arrive(&service, tokens[1].0, &tokens[1].1, &frame::encode(Kind::Join, &entry.encode()));
    let text = logged(|| service.on_readable(tokens[1].0));
    let process = format!("(process {} on host ", std::process::id());
    let error = text.lines().find(|line| line.contains("ERROR")).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(error.matches(&process).count(), 2, "{error}");
    assert!(matches!(service.failed, Some(Error::DuplicateRank { rank: 3, .. })), "{:?}", service.failed);
}
