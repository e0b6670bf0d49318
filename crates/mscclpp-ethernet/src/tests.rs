//! A process with connections, spoken to over sockets as a peer would, good or bad.

mod withdrawal;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, Error as CoreError, RegisteredMemory, Transport,
};
use mscclpp_gpu::{DevicePtr, Platform};
use mscclpp_test_support::until;

use mscclpp_net::{SystemError, env::BadVariable, key::Key};

use crate::{
    Error, Ethernet,
    blob::EndpointBlob,
    dial::dial,
    protocol::{
        frame::{Fault, Frame, HEADER, Inbound, Outbound},
        handshake::{HELLO, Purpose, Request, Responder, Session},
    },
};

const LIMIT: Duration = Duration::from_secs(30);

/// Words of a process that peers write.
struct Memory {
    registered: RegisteredMemory,
    words: Arc<[AtomicU64]>,
}

struct Process {
    context: Context,
    endpoint: Endpoint,
}

impl Process {
    fn start() -> Self {
        let context = Context::builder().provider(Ethernet::new()).platform(Platform::Host).build();
        let config = EndpointConfig::new(Transport::ETHERNET, Device::CPU);
        Self { endpoint: context.create_endpoint(config).unwrap(), context }
    }

    fn connect(&self, peer: &Self) -> Connection {
        let peer = Endpoint::deserialize(&peer.endpoint.serialize().unwrap()).unwrap();
        self.context.connect(&self.endpoint, &peer).unwrap()
    }

    fn memory(&self) -> Memory {
        let words: Arc<[AtomicU64]> = (0..512).map(|_| AtomicU64::new(0)).collect();
        let start = DevicePtr::from_ptr(words.as_ptr());
        // SAFETY: kept beside its registration, and longer than anybody uses it.
        let registered = unsafe { self.context.register_memory(start, 4096, Transport::ETHERNET) }.unwrap();
        Memory { registered, words }
    }

    fn blob(&self) -> EndpointBlob {
        EndpointBlob::decode(&self.endpoint.info().blob).unwrap()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.blob().candidates(true)
    }
}

impl Memory {
    /// Its number on the wire: behind magic and version of this transport's part, which ends the serialization.
    fn id(&self) -> u64 {
        let bytes = self.registered.serialize().unwrap();
        u64::from_le_bytes(*bytes[bytes.len() - 17..].first_chunk().unwrap())
    }

    fn is_untouched(&self) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

/// Bytes go from `a` to `b` over `ab`.
fn delivers(ab: &Connection, a: &Process, b: &Process) {
    let (source, target) = (a.memory(), b.memory());
    source.words.iter().for_each(|word| word.store(77, Ordering::Relaxed));
    let there = RegisteredMemory::deserialize(&target.registered.serialize().unwrap()).unwrap();
    ab.write(&there, 0, &source.registered, 0, 4096).unwrap();
    ab.flush(LIMIT).unwrap();
    assert!(target.words.iter().all(|word| word.load(Ordering::Relaxed) == 77));
}

/// Somebody who has a process's endpoint, and sends what it likes.
struct Member {
    link: TcpStream,
    heard: Inbound,
    queue: TcpStream,
    session: Session,
}

impl Member {
    /// Poses as the peer at `from`.
    fn join(victim: &Process, from: &Process) -> Self {
        let blob = victim.blob();
        let request =
            Request { endpoint: blob.name, from: from.blob().name, link: 9, purpose: Purpose::Link };
        let (link, said, _) = dial(&victim.addresses(), &blob.key, &request).unwrap();
        let request = Request { purpose: Purpose::Queue, ..request };
        let (queue, session, _) = dial(&victim.addresses(), &blob.key, &request).unwrap();
        for stream in [&link, &queue] {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
        }
        Self { link, heard: Inbound::new(said.responder), queue, session }
    }

    /// What the victim tells about it.
    fn fault(&mut self) -> Fault {
        let mut header = [0; HEADER];
        self.link.read_exact(&mut header).unwrap();
        match self.heard.open(&header).unwrap() {
            Frame::Fault(fault) => fault,
            other => panic!("{other:?}"),
        }
    }
}

/// What is wrong, the bytes that are, given the number of a region, and how they should be called.
type Case = (&'static str, fn(&Outbound, u64) -> Vec<u8>, fn(&Fault) -> bool);

#[test]
fn what_a_member_sends_wrong_ends_its_connection_alone() {
    let cases: [Case; 6] = [
        (
            "an unknown region",
            |out, id| out.seal(Frame::Update { region: id ^ 1, offset: 0, value: 1 }).to_vec(),
            |fault| matches!(fault, Fault::Region { .. }),
        ),
        (
            "past the end",
            |out, region| {
                [&out.seal(Frame::Write { region, offset: 4090, len: 7, checksum: None })[..], &[1; 7]]
                    .concat()
            },
            |fault| matches!(fault, Fault::Bounds { offset: 4090, .. }),
        ),
        (
            "a frame twice",
            |out, _| out.seal(Frame::Flush { ticket: 1 }).repeat(2),
            |fault| matches!(fault, Fault::Sequence { due: 1, came: 0 }),
        ),
        (
            "a frame left out",
            |out, region| {
                out.seal(Frame::Flush { ticket: 1 });
                out.seal(Frame::Update { region, offset: 0, value: 1 }).to_vec()
            },
            |fault| matches!(fault, Fault::Sequence { due: 0, came: 1 }),
        ),
        (
            "a changed frame",
            |out, region| {
                let mut header = out.seal(Frame::Update { region, offset: 0, value: 1 });
                header[33] ^= 1;
                header.to_vec()
            },
            |fault| *fault == Fault::Seal,
        ),
        (
            "changed data",
            |out, region| {
                let frame = Frame::Write { region, offset: 0, len: 0, checksum: Some(1) };
                out.seal(frame).to_vec()
            },
            |fault| matches!(fault, Fault::Checksum { .. }),
        ),
    ];
    let (a, victim) = (Process::start(), Process::start());
    let (ab, ba) = (a.connect(&victim), victim.connect(&a));
    for (what, bytes, expected) in cases {
        let from = Process::start();
        let back = victim.connect(&from);
        let memory = victim.memory();
        let mut member = Member::join(&victim, &from);
        let outbound = Outbound::new(member.session.initiator.clone());
        member.queue.write_all(&bytes(&outbound, memory.id())).unwrap();
        let fault = member.fault();
        assert!(expected(&fault), "{what}: {fault:?}");
        // It may have answered a flush; then it ends.
        let mut answers = Vec::new();
        let ended = member.queue.read_to_end(&mut answers);
        assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        until(what, || back.check().is_err());
        let error = back.check().unwrap_err().to_string();
        assert!(error.contains(&fault.to_string()), "{what}: {error}");
        assert!(memory.is_untouched(), "{what}");
        delivers(&ab, &a, &victim);
        delivers(&ba, &victim, &a);
    }
}

#[test]
fn strangers_do_not_disturb() {
    let (a, b) = (Process::start(), Process::start());
    let (ab, _ba) = (a.connect(&b), b.connect(&a));
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(b.addresses()[0]).unwrap()).collect();
    for len in 0..200usize {
        let mut stranger = TcpStream::connect(b.addresses()[0]).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        // It may have been turned away already.
        let _ = stranger.write_all(&bytes);
    }
    // Somebody who knows the name of an endpoint, and not its key; a queue without a link.
    let blob = b.blob();
    let request = Request { endpoint: blob.name, from: [1; 16], link: 1, purpose: Purpose::Link };
    let refused = dial(&b.addresses()[..1], &Key::from_bytes([7; 32]), &request).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("key"), "{refused}");
    let queue = Request { purpose: Purpose::Queue, ..request };
    assert!(dial(&b.addresses()[..1], &blob.key, &queue).is_err());
    delivers(&ab, &a, &b);
    delivers(&a.connect(&b), &a, &b);
    drop(silent);
}

#[test]
fn a_member_gets_no_more_connections_than_there_is_room_for() {
    let (a, victim, from) = (Process::start(), Process::start(), Process::start());
    let (ab, ba) = (a.connect(&victim), victim.connect(&a));
    delivers(&ab, &a, &victim);
    let (blob, at) = (victim.blob(), victim.addresses());
    let mut taken = Vec::new();
    for purpose in [Purpose::Link, Purpose::Queue] {
        let request = Request { endpoint: blob.name, from: from.blob().name, link: 9, purpose };
        let refused = (0..1000).find_map(|_| match dial(&at[..1], &blob.key, &request) {
            Ok(connection) => {
                taken.push(connection);
                None
            }
            Err(error) => Some(error.to_string()),
        });
        let refused = refused.expect("no limit");
        assert!(refused.contains("as many connections as it takes"), "{refused}");
        assert!(refused.contains(&at[0].to_string()), "{refused}");
    }
    delivers(&ab, &a, &victim);
    delivers(&ba, &victim, &a);
    drop(taken);
    until("room", || {
        dial(
            &at[..1],
            &blob.key,
            &Request { endpoint: blob.name, from: from.blob().name, link: 9, purpose: Purpose::Link },
        )
        .is_ok()
    });
}

#[test]
fn a_peer_of_another_version_is_an_error_that_names_both() {
    let (a, b) = (Process::start(), Process::start());
    let mut bytes = b.endpoint.serialize().unwrap();
    let at = bytes.windows(4).rposition(|window| window == crate::protocol::MAGIC).unwrap();
    bytes[at + 4] += 1;
    let newer = Endpoint::deserialize(&bytes).unwrap();
    let error = a.context.connect(&a.endpoint, &newer).unwrap_err().to_string();
    assert!(error.contains("version 2") && error.contains("version 1"), "{error}");

    // One whose blob is as ours, and that speaks otherwise.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut challenge = [0; 40];
        challenge[..8].copy_from_slice(b"MSCE\x07\0\0\0");
        listener.accept().unwrap().0.write_all(&challenge).unwrap();
    });
    let request = Request { endpoint: [0; 16], from: [0; 16], link: 0, purpose: Purpose::Link };
    let error = dial(&[address], &Key::from_bytes([0; 32]), &request).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("version 7") && error.contains("version 1"), "{error}");
    thread.join().unwrap();
}

#[test]
fn every_address_is_tried_and_named() {
    let (a, b) = (Process::start(), Process::start());
    let blob = b.blob();
    let request = Request { endpoint: blob.name, from: a.blob().name, link: 1, purpose: Purpose::Link };
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let candidates = [closed, b.addresses()[0]];
    let (_, _, found) = dial(&candidates, &blob.key, &request).unwrap();
    assert_eq!(found, candidates[1]);
    let gone = dial(&[closed], &blob.key, &request).map(|_| ()).unwrap_err();
    assert!(gone.to_string().contains(&closed.to_string()), "{gone}");
    assert!(matches!(CoreError::from(gone), CoreError::PeerLost { .. }));
}

/// As where the first packets of a connection are lost, and the next ones wait for theirs.
#[test]
fn an_address_that_is_silent_is_tried_again() {
    let b = Process::start();
    let (blob, peer) = (b.blob(), b.addresses()[0]);
    let request = Request { endpoint: blob.name, from: [9; 16], link: 1, purpose: Purpose::Link };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let between = std::thread::spawn(move || {
        let (silent, _) = listener.accept().unwrap();
        let (mut here, _) = listener.accept().unwrap();
        let mut there = TcpStream::connect(peer).unwrap();
        let (mut from_here, mut from_there) = (here.try_clone().unwrap(), there.try_clone().unwrap());
        let back = std::thread::spawn(move || std::io::copy(&mut from_there, &mut here));
        let _ = std::io::copy(&mut from_here, &mut there);
        let _ = there.shutdown(std::net::Shutdown::Both);
        let _ = back.join().unwrap();
        drop(silent);
    });
    let (link, _, found) = dial(&[address], &blob.key, &request).unwrap();
    assert_eq!(found, address);
    drop(link);
    between.join().unwrap();
}

#[test]
fn a_key_is_in_no_text_about_an_endpoint() {
    let process = Process::start();
    let key = process.blob().key.to_bytes();
    let info = process.endpoint.info();
    for text in
        [format!("{info:?}"), format!("{info:#?}"), format!("{info}"), format!("{:?}", process.endpoint)]
    {
        let numbers: Vec<u8> =
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        assert!(!numbers.windows(key.len()).any(|window| window == key), "{text}");
    }
}

/// Whose link is open, and who listens no more.
#[test]
fn a_queue_that_cannot_be_opened_is_an_error_that_names_the_peer() {
    let (a, b) = (Process::start(), Process::start());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (real, mut blob) = (b.blob().encode(), b.blob());
    blob.port = address.port();
    let mut bytes = b.endpoint.serialize().unwrap();
    let at = bytes.windows(real.len()).position(|window| window == real).unwrap();
    bytes[at..at + real.len()].copy_from_slice(&blob.encode());
    let host = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let responder = Responder::new([1; 32]);
        stream.write_all(responder.challenge()).unwrap();
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).unwrap();
        let (answer, verdict) = responder.verify(&hello, |_| Some(blob.key), |_| Ok(()));
        verdict.map(|_| ()).unwrap();
        stream.write_all(&answer).unwrap();
        stream
    });
    let ab = a.context.connect(&a.endpoint, &Endpoint::deserialize(&bytes).unwrap()).unwrap();
    ab.set_label("rank 7");
    let _link = host.join().unwrap();
    let error = ab.open_queue().map(|_| ()).unwrap_err();
    let CoreError::PeerLost { peer, reason } = &error else { panic!("{error}") };
    assert!(peer == "rank 7" && reason.contains(&address.to_string()), "{error}");
    ab.check().expect("its link is open");
}

/// How many segments with data a socket has sent.
fn segments(stream: &TcpStream) -> u32 {
    const DATA_SEGS_OUT: usize = 156;
    let (mut info, mut len) = ([0u8; 256], 256);
    // SAFETY: the system writes at most `len` bytes into `info`, and says how many.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert!(result == 0 && len as usize >= DATA_SEGS_OUT + 4, "this system does not count segments");
    u32::from_ne_bytes(*info[DATA_SEGS_OUT..].first_chunk().unwrap())
}

#[test]
fn a_small_write_and_its_signal_leave_in_one_segment() {
    use crate::socket::{Piece, SendMode, push, send};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    let frame = [5; 100];
    // SAFETY: an array of this test's.
    let say = |mode| assert_eq!(unsafe { send(&stream, &[Piece::of(&frame)], mode) }.unwrap(), 100);
    // 200 ms after a write, the system sends anyway: a machine may be that slow now and then, not always.
    let together = (0..20).any(|_| {
        let before = segments(&stream);
        say(SendMode::NonBlockingMore);
        say(SendMode::NonBlocking);
        segments(&stream) == before + 1
    });
    assert!(together, "a write that was to wait for its signal did not");
    let pushed = (0..20).any(|_| {
        let before = segments(&stream);
        say(SendMode::NonBlockingMore);
        let held = segments(&stream) == before;
        push(&stream);
        held && segments(&stream) == before + 1
    });
    assert!(pushed, "what was held back was not pushed out");
}

#[test]
fn what_the_core_has_a_variant_for_is_told_with_it() {
    let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let malformed = Error::Malformed { what: "an endpoint", problem: "it ends in the middle" };
    assert!(matches!(malformed.into(), CoreError::Malformed { what: "an endpoint", .. }));
    assert!(matches!(Error::Closed { address }.into(), CoreError::PeerClosed { .. }));
    let allowed = "AF_INET or AF_INET6";
    let environment =
        Error::Environment(BadVariable { variable: "A_SWITCH", value: "maybe".to_owned(), allowed });
    assert!(matches!(environment.into(), CoreError::Environment { variable: "A_SWITCH", .. }));
    assert!(matches!(Error::NoAddress.into(), CoreError::Transport(_)));
}

#[test]
fn the_systems_answer_is_the_source_and_each_text_is_said_once() {
    let source = std::io::Error::from_raw_os_error(libc::ENETDOWN);
    let answer = source.to_string();
    let error = CoreError::from(Error::System(SystemError { operation: "listening for peers", source }));
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(cause.unwrap().raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(error.to_string(), "Ethernet: listening for peers failed");
    let text = mscclpp_net::Report(&error).to_string();
    assert_eq!(text, format!("Ethernet: listening for peers failed: {answer}"));
}

#[test]
fn threads_and_descriptors_end_with_what_needs_them() {
    let count = || {
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        (entries("/proc/self/fd"), entries("/proc/self/task"))
    };
    // Other tests of this binary run beside this one, so the count of a quiet moment is what can be compared: connections
    // that come and go must not add up.
    let mut smallest = (usize::MAX, usize::MAX);
    for _ in 0..100 {
        let (a, b) = (Process::start(), Process::start());
        let (ab, ba) = (a.connect(&b), b.connect(&a));
        delivers(&ab, &a, &b);
        delivers(&ba, &b, &a);
        drop((a, b, ab, ba));
        let now = count();
        smallest = (smallest.0.min(now.0), smallest.1.min(now.1));
    }
    assert!(smallest.0 < 300 && smallest.1 < 150, "{smallest:?} descriptors and threads after 100 pairs");
}
