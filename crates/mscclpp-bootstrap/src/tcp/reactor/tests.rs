//! Tests of ranks with sockets: some have strangers among the addresses they try.

use std::io::Read;
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;
use crate::fuzzing::{RawRank, kinds};
use crate::inbox::{Channel, Inbox, Stream, Wait};
use crate::job::tests::{self, goodbye, linked, look_for, say_something};
use crate::job::{Formation, Join, Limits, Plan};
use crate::protocol::frame::Kind;
use crate::protocol::handshake::{JobKey, challenge};
use crate::protocol::table::{Entry, Place};
use mscclpp_net::handshake;

const PATIENCE: Duration = Duration::from_secs(30);
const N_RANKS: usize = 3;

fn plan(rank: usize) -> Plan {
    let plan = Plan::new(rank, N_RANKS, JobKey::of_secret("swordfish"), Instant::now(), PATIENCE);
    // A stranger is given up sooner than in a real job.
    let limits = Limits { answer: Duration::from_secs(1), ..Limits::default() };
    Plan { job: Some([5; 16]), limits, ..plan }
}

fn reactor(plan: Plan, formation: Formation, listener: Option<Listener>) -> Reactor {
    let rank = plan.rank;
    let job = Job::new(plan, formation, Instant::now());
    let handle = Arc::new(ReactorHandle::new(Arc::new(Inbox::default())).unwrap());
    Reactor::new(rank, job, handle, listener.map(Arc::new), Places::default()).unwrap()
}

fn listen() -> (Listener, SocketAddr) {
    let listener = socket::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn rank_0(listener: Listener) -> Reactor {
    let root = listener.local_addr().unwrap();
    let entry = Entry {
        host: [1; 16],
        domain: [1; 16],
        place: Place { port: root.port(), addresses: vec![root.ip()] },
    };
    let formation = Formation::of_root(&plan(0), root.to_string(), entry);
    reactor(plan(0), formation, Some(listener))
}

/// Makes a rank that looks for rank 0 at these addresses.
fn member(rank: usize, candidates: Vec<SocketAddr>, listener: Option<Listener>) -> Reactor {
    let join = Join { candidates, listened: false, host: [1; 16], domain: [1; 16] };
    reactor(plan(rank), Formation::of_member(join), listener)
}

fn start(reactor: Reactor) -> (Arc<ReactorHandle>, JoinHandle<()>) {
    let handle = Arc::clone(&reactor.handle);
    (handle, std::thread::spawn(move || reactor.run()))
}

fn await_forming((handle, _): &(Arc<ReactorHandle>, JoinHandle<()>)) {
    let formed = {
        let mut wait = Wait::quiet(Instant::now() + PATIENCE);
        handle.inbox.wait_until(&mut wait, &String::new, || handle.is_formed())
    };
    assert!(formed.unwrap());
}

fn stop((handle, thread): (Arc<ReactorHandle>, JoinHandle<()>)) {
    handle.command(Command::Close);
    thread.join().unwrap();
}

/// Challenges the first process that connects, and says nothing more. Returns all bytes received until the other side
/// closed.
fn silent() -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let (listener, address) = mscclpp_test_support::listen();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&challenge([0; 32]).1).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        said
    });
    (address, thread)
}

#[test]
fn a_silent_stranger_does_not_keep_a_rank_from_rank_0() {
    let (stranger, received) = silent();
    let (listener, root) = listen();
    let ranks =
        [rank_0(listener), member(1, vec![stranger, root], None), member(2, vec![root], None)].map(start);
    ranks.iter().for_each(await_forming);
    // If the process had been rank 0 itself, it would not take the proof for that of a second rank 1.
    assert_eq!(kinds(&received.join().unwrap()), [handshake::Kind::Hello as u8, Kind::Retire as u8]);
    ranks.into_iter().for_each(stop);
}

#[test]
fn a_rank_0_that_is_slow_to_answer_sees_a_rank_once() {
    let listener = socket::listen_everywhere(false).unwrap();
    let port = listener.local_addr().unwrap().port();
    let addresses = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
    let mut zero = rank_0(listener);
    let one = start(member(1, addresses.to_vec(), None));
    // Rank 0 challenges the rank, and then does nothing until its proof has come, and has been withdrawn.
    let deadline = Instant::now() + PATIENCE;
    let mut came = Vec::new();
    while came != [handshake::Kind::Hello as u8, Kind::Retire as u8] {
        assert!(Instant::now() < deadline, "{came:?} came");
        if zero.sockets.is_empty() {
            zero.accept_all();
        }
        let mut bytes = [0; 4096];
        let stream = zero.sockets.values().next().map(|socket| &socket.stream);
        let read = stream.and_then(|stream| stream.peek(&mut bytes).ok()).unwrap_or(0);
        came = kinds(&bytes[..read]);
        std::thread::sleep(Duration::from_millis(10));
    }
    let ranks = [start(zero), one, start(member(2, addresses.to_vec(), None))];
    ranks.iter().for_each(await_forming);
    ranks.into_iter().for_each(stop);
}

#[test]
fn a_silent_stranger_does_not_keep_two_ranks_apart() {
    let (stranger, received) = silent();
    let (listener, peer) = listen();
    // The ranks 1 and 2 belong to a job with another rank 0, so the search for it has nothing to do.
    let mut ranks = [member(1, Vec::new(), Some(listener)), member(2, Vec::new(), None)];
    look_for(&mut ranks[1].job, 1, vec![stranger, peer], PATIENCE);
    let ranks = ranks.map(start);
    let stream = |peer| Stream { peer, channel: Channel::User, tag: 7 };
    for (from, to) in [(2, 1), (1, 2)] {
        let bytes = b"hello".to_vec();
        ranks[from - 1].0.command(Command::Send { stream: stream(to), bytes, written: None });
        let mut wait = Wait::quiet(Instant::now() + PATIENCE);
        let came = ranks[to - 1].0.inbox.take(stream(from), &mut wait, &String::new);
        assert_eq!(came.unwrap().as_deref(), Some(&b"hello"[..]));
    }
    ranks.into_iter().for_each(stop);
    // S1: the process might have been the other rank.
    assert_eq!(kinds(&received.join().unwrap()), [handshake::Kind::Hello as u8, Kind::Goodbye as u8]);
}

/// Accepts a connection. Returns its other end.
fn accepted(reactor: &mut Reactor, id: ConnectionId) -> TcpStream {
    let (listener, _) = listen();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = socket::accept(&listener).unwrap().unwrap();
    reactor.watch(id, ours, false).unwrap();
    theirs
}

/// Sends bytes to a connection, and waits until they have arrived.
fn arrive(reactor: &Reactor, id: ConnectionId, mut theirs: &TcpStream, bytes: &[u8]) {
    theirs.write_all(bytes).unwrap();
    let stream = &reactor.sockets[&id].stream;
    stream.set_nonblocking(false).unwrap();
    let mut seen = vec![0; bytes.len()];
    while stream.peek(&mut seen).unwrap() < bytes.len() {}
    stream.set_nonblocking(true).unwrap();
}

#[test]
fn a_goodbye_is_heard_though_writing_fails_while_another_connection_is_read() {
    let handle = Arc::new(ReactorHandle::new(Arc::new(Inbox::default())).unwrap());
    let mut reactor = Reactor::new(0, tests::rank_0(), handle, None, Places::default()).unwrap();
    let link = linked(&mut reactor.job, 2);
    let leaver = accepted(&mut reactor, link);
    reactor.act();
    arrive(&reactor, link, &leaver, &goodbye());
    // From here on writes to the connection fail, and there is something to write.
    reactor.sockets[&link].stream.shutdown(Shutdown::Write).unwrap();
    say_something(&mut reactor.job, link);

    // A rank comes that is one too many. Rank 0 tells it at once, so it writes to all while it reads from one.
    let stranger = reactor.job.on_accepted(Instant::now(), ([127, 0, 0, 1], 9).into(), [7; 32]);
    let challenge = reactor.job.pending(stranger).to_vec();
    let stream = accepted(&mut reactor, stranger);
    let proof = RawRank::without_key(4, 4).on_bytes(&challenge).unwrap();
    arrive(&reactor, stranger, &stream, &proof);
    reactor.read(stranger);
    reactor.act();

    assert!(!reactor.job.is_open(link) && !reactor.sockets.contains_key(&link));
    assert!(matches!(reactor.handle.inbox.gone(2), Some(Error::PeerClosed { rank: 2 })));
    let failure = reactor.handle.inbox.failure();
    assert!(!matches!(failure, Some(Error::PeerLost { .. })), "{failure:?}");
}
