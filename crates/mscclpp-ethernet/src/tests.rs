//! Tests of a process with connections, to which a well-behaved or malicious peer speaks over sockets.

mod withdrawal;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use mscclpp_conformance::hosts::{End, Words};
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, Error as CoreError, RegisteredMemory, Transport,
};
use mscclpp_gpu::Platform;
use mscclpp_test_support::{held, until};

use mscclpp_net::{
    SystemError,
    env::BadVariable,
    links::{
        self, Address, DataConnection, LinkEnd, LinkEvents, Links, Options,
        header::{BadHeader, Outbound},
    },
};

use crate::{
    Error, Ethernet,
    blob::PROTOCOL,
    frame::{Fault, Frame},
};

const LIMIT: Duration = Duration::from_secs(30);

/// The context and endpoint of a process of its own.
fn process() -> End {
    let context = Context::builder().provider(Ethernet::new()).platform(Platform::Sim).build();
    End::open(context, EndpointConfig::new(Transport::ETHERNET, Device::CPU))
}

fn address(process: &End) -> Address {
    Address::decode(&PROTOCOL, &process.endpoint.info().blob).unwrap()
}

/// The region's id in frames. It follows magic and version in this transport's part, with which the serialization ends.
fn id_of(memory: &RegisteredMemory) -> u64 {
    let bytes = memory.serialize().unwrap();
    u64::from_le_bytes(*bytes[bytes.len() - 17..].first_chunk().unwrap())
}

/// Checks that data goes from `a` to `b` over `ab`.
fn delivers(ab: &Connection, a: &End, b: &End) {
    let (source, target) = (Words::new(a, 512), Words::new(b, 512));
    source.fill(77);
    ab.write(&target.at_peer(), 0, &source.memory, 0, 4096).unwrap();
    ab.flush(LIMIT).unwrap();
    assert_eq!(target.all_hold(77), Ok(()));
}

/// Passes on how a link ended.
struct Ended(Sender<LinkEnd>);

impl LinkEvents for Ended {
    fn ended(&self, end: LinkEnd) {
        let _ = self.0.send(end);
    }
}

/// A member: it has a process's endpoint, and may send any bytes.
struct Member {
    _link: links::Link,
    ended: Receiver<LinkEnd>,
    queue: TcpStream,
    outbound: Outbound,
}

impl Member {
    /// Connects to the victim as if it were the peer `from`.
    fn join(victim: &End, from: &End) -> Self {
        let links = Links::start(PROTOCOL, Options::default()).unwrap();
        let (tell, ended) = channel();
        let link = links.dial(&address(victim), true, address(from).name, Arc::new(Ended(tell))).unwrap();
        let DataConnection { stream: queue, outbound, .. } = link.open_data().unwrap();
        queue.set_nonblocking(false).unwrap();
        queue.set_read_timeout(Some(LIMIT)).unwrap();
        Self { _link: link, ended, queue, outbound }
    }

    /// The fault that the victim reports to the member.
    fn fault(&self) -> String {
        match self.ended.recv_timeout(LIMIT) {
            Ok(LinkEnd::Refused { reason, .. }) => String::from_utf8(reason).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// A name, a function that makes the wrong bytes from a region's id, and the fault that they must cause, for that id.
type Case = (&'static str, fn(&Outbound, u64) -> Vec<u8>, fn(u64) -> Fault);

#[test]
fn what_a_member_sends_wrong_ends_its_connection_alone() {
    let cases: [Case; 6] = [
        (
            "an unknown region",
            |out, id| out.seal(Frame::Update { region: id ^ 1, offset: 0, value: 1 }).to_vec(),
            |id| Fault::Region { region: id ^ 1 },
        ),
        (
            "past the end",
            |out, region| {
                [&out.seal(Frame::Write { region, offset: 4090, len: 7, checksum: None })[..], &[1; 7]]
                    .concat()
            },
            |region| Fault::Bounds { region, offset: 4090, len: 7 },
        ),
        (
            "a frame twice",
            |out, _| out.seal(Frame::Flush { ticket: 1 }).repeat(2),
            |_| BadHeader::Sequence { due: 1, came: 0 }.into(),
        ),
        (
            "a frame left out",
            |out, region| {
                out.seal(Frame::Flush { ticket: 1 });
                out.seal(Frame::Update { region, offset: 0, value: 1 }).to_vec()
            },
            |_| BadHeader::Sequence { due: 0, came: 1 }.into(),
        ),
        (
            "a changed frame",
            |out, region| {
                let mut header = out.seal(Frame::Update { region, offset: 0, value: 1 });
                header[33] ^= 1;
                header.to_vec()
            },
            |_| BadHeader::Seal.into(),
        ),
        (
            "changed data",
            |out, region| {
                let frame = Frame::Write { region, offset: 0, len: 0, checksum: Some(1) };
                out.seal(frame).to_vec()
            },
            |region| Fault::Checksum { region, offset: 0 },
        ),
    ];
    let (a, victim) = (process(), process());
    let (ab, ba) = (a.connect(&victim.endpoint), victim.connect(&a.endpoint));
    for (what, bytes, expected) in cases {
        let from = process();
        let back = victim.connect(&from.endpoint);
        let memory = Words::new(&victim, 512);
        let mut member = Member::join(&victim, &from);
        let bytes = bytes(&member.outbound, id_of(&memory.memory));
        member.queue.write_all(&bytes).unwrap();
        let fault = member.fault();
        assert_eq!(fault, expected(id_of(&memory.memory)).to_string(), "{what}");
        // The victim may have answered a flush before it ends the connection.
        let mut answers = Vec::new();
        let ended = member.queue.read_to_end(&mut answers);
        assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        until(what, || back.check().is_err());
        let error = back.check().unwrap_err().to_string();
        assert!(error.contains(&fault), "{what}: {error}");
        assert_eq!(memory.all_hold(0), Ok(()), "{what}");
        delivers(&ab, &a, &victim);
        delivers(&ba, &victim, &a);
    }
}

#[test]
fn a_peer_of_another_version_is_an_error_that_names_both() {
    let (a, b) = (process(), process());
    let mut bytes = b.endpoint.serialize().unwrap();
    let at = bytes.windows(4).rposition(|window| window == PROTOCOL.magic).unwrap();
    bytes[at + 4] += 1;
    let newer = Endpoint::deserialize(&bytes).unwrap();
    let error = a.context.connect(&a.endpoint, &newer).unwrap_err().to_string();
    assert!(error.contains("version 6") && error.contains("version 5"), "{error}");
}

/// Opens a listener, and makes the endpoint of a process as if the process listened there.
fn listen_as(process: &End) -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let real = address(process);
    let moved = Address { port: listener.local_addr().unwrap().port(), ..real.clone() };
    let (real, moved) = (real.encode(&PROTOCOL), moved.encode(&PROTOCOL));
    let mut bytes = process.endpoint.serialize().unwrap();
    let at = bytes.windows(real.len()).position(|window| window == real).unwrap();
    bytes[at..at + real.len()].copy_from_slice(&moved);
    (listener, Endpoint::deserialize(&bytes).unwrap())
}

#[test]
fn a_key_is_in_no_text_about_an_endpoint() {
    let process = process();
    let key = address(&process).key.to_bytes();
    let info = process.endpoint.info();
    for text in
        [format!("{info:?}"), format!("{info:#?}"), format!("{info}"), format!("{:?}", process.endpoint)]
    {
        let numbers: Vec<u8> =
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        assert!(!numbers.windows(key.len()).any(|window| window == key), "{text}");
    }
}

/// The peer's link is open, but the peer no longer listens.
#[test]
fn a_queue_that_cannot_be_opened_is_an_error_that_names_the_peer() {
    let (a, b) = (process(), process());
    let (listener, elsewhere) = listen_as(&b);
    let (address, peer) = (listener.local_addr().unwrap(), address(&b).candidates(true)[0]);
    // Passes one connection on, and then stops listening.
    let way = std::thread::spawn(move || {
        let here = listener.accept().unwrap().0;
        drop(listener);
        mscclpp_test_support::relay(here, TcpStream::connect(peer).unwrap()).unwrap();
    });
    let ab = a.context.connect(&a.endpoint, &elsewhere).unwrap();
    ab.set_label("rank 7");
    let error = ab.open_queue().map(|_| ()).unwrap_err();
    let CoreError::PeerLost { peer, reason } = &error else { panic!("{error}") };
    assert!(peer == "rank 7" && reason.contains(&address.to_string()), "{error}");
    ab.check().expect("its link is open");
    drop(ab);
    way.join().unwrap();
}

/// The number of segments with data that a socket has sent.
fn segments(stream: &TcpStream) -> u32 {
    const DATA_SEGS_OUT: usize = 156;
    let (mut info, mut len) = ([0u8; 256], 256);
    // SAFETY: the system writes at most `len` bytes into `info`, and sets `len` to their number.
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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    let frame = [5; 100];
    // SAFETY: the array is this test's own.
    let say = |mode| assert_eq!(unsafe { send(&stream, &[Piece::of(&frame)], mode) }.unwrap(), 100);
    // The system sends 200 milliseconds after a write in any case: a node may be that slow now and then, not always.
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
    let core = |error: links::Error| CoreError::from(Error::from(error));
    assert!(matches!(core(links::Error::Closed { address }), CoreError::PeerClosed { .. }));
    let gone = core(links::Error::Gone { addresses: vec![address] });
    let CoreError::PeerLost { reason, .. } = &gone else { panic!("{gone}") };
    assert!(reason.contains("nobody listens at 127.0.0.1:1"), "{reason}");
    let allowed = "AF_INET or AF_INET6";
    let environment = BadVariable { variable: "A_SWITCH", value: "maybe".to_owned(), allowed };
    assert!(matches!(
        core(environment.into()),
        CoreError::Environment(BadVariable { variable: "A_SWITCH", .. })
    ));
    assert!(matches!(core(links::Error::NoAddress), CoreError::Transport(_)));
}

#[test]
fn the_systems_answer_is_the_source_and_each_text_is_said_once() {
    let source = std::io::Error::from_raw_os_error(libc::ENETDOWN);
    let answer = source.to_string();
    let error = CoreError::from(Error::from(links::Error::from(SystemError {
        operation: "listening for peers",
        source,
    })));
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(cause.unwrap().raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(error.to_string(), "Ethernet: listening for peers failed");
    let text = mscclpp_net::Report(&error).to_string();
    assert_eq!(text, format!("Ethernet: listening for peers failed: {answer}"));
}

#[test]
fn threads_and_descriptors_end_with_what_needs_them() {
    // Other tests of this binary run at the same time, so only the smallest count can be compared: connections that come
    // and go must not add up.
    let mut smallest = (usize::MAX, usize::MAX);
    for _ in 0..100 {
        let (a, b) = (process(), process());
        let (ab, ba) = (a.connect(&b.endpoint), b.connect(&a.endpoint));
        delivers(&ab, &a, &b);
        delivers(&ba, &b, &a);
        drop((a, b, ab, ba));
        let [descriptors, threads, _] = held();
        smallest = (smallest.0.min(descriptors), smallest.1.min(threads));
    }
    assert!(smallest.0 < 300 && smallest.1 < 150, "{smallest:?} descriptors and threads after 100 pairs");
}
