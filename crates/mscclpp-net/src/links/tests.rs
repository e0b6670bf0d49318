//! Tests of processes with endpoints, to which peers and strangers connect.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use mscclpp_test_support::{LIMIT, listen, until};

use crate::{SystemError, handshake::Responder, key::Key};

use super::{
    Acceptor, Address, Admission, DataConnection, Error, Link, LinkEnd, LinkEvents, Links, Name, Options,
    Protocol,
    handshake::{self, Purpose, Refusal, Request},
    header::Fields,
    service::MAX_OPEN,
};

pub(super) const PROTOCOL: Protocol =
    Protocol { name: "mscclpp-test", title: "Test", magic: *b"TEST", version: 1 };

struct Tell(Sender<LinkEnd>);

impl LinkEvents for Tell {
    fn ended(&self, end: LinkEnd) {
        let _ = self.0.send(end);
    }
}

/// A link, and the channel that receives its end.
struct Watched {
    link: Link,
    events: Receiver<LinkEnd>,
}

impl Watched {
    fn end(&self) -> LinkEnd {
        self.events.recv_timeout(LIMIT).expect("no end")
    }

    /// Waits for the end of the link and returns why the peer is lost.
    fn lost(&self) -> String {
        match self.end() {
            LinkEnd::Lost(reason) => reason,
            other => panic!("not lost but {other}"),
        }
    }

    /// Waits for the end of the link and returns whether the peer has closed its endpoint.
    fn says_goodbye(&self) -> bool {
        matches!(self.end(), LinkEnd::Goodbye)
    }
}

/// The data connections that a process has taken.
#[derive(Default)]
struct Taken(Mutex<Vec<(DataConnection, Admission)>>);

impl Taken {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<(DataConnection, Admission)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> Admission {
        until("a connection", || !self.all().is_empty());
        self.all().pop().unwrap().1
    }
}

impl Acceptor for Taken {
    fn accept(&self, connection: DataConnection, admission: Admission) -> Result<(), SystemError> {
        self.all().push((connection, admission));
        Ok(())
    }

    fn close_endpoint(&self, name: &Name) {
        self.all().retain(|(_, admission)| admission.endpoint() != name);
    }
}

/// One simulated process of a test.
struct Process {
    links: Arc<Links>,
    address: Address,
    taken: Arc<Taken>,
}

impl Process {
    fn start() -> Self {
        let taken = Arc::new(Taken::default());
        let options = Options { acceptor: Some(taken.clone()), ..Options::default() };
        Self::with(options, taken)
    }

    fn with(options: Options, taken: Arc<Taken>) -> Self {
        let links = Links::start(PROTOCOL, options).unwrap();
        let address = links.open_endpoint().unwrap();
        Self { links, address, taken }
    }

    fn dial(&self, peer: &Self) -> Watched {
        self.try_dial(&peer.address).unwrap()
    }

    fn try_dial(&self, peer: &Address) -> Result<Watched, Error> {
        let (tell, events) = channel();
        let link = self.links.dial(peer, true, self.address.name, Arc::new(Tell(tell)))?;
        Ok(Watched { link, events })
    }

    /// Returns one of the addresses of this process.
    fn at(&self) -> SocketAddr {
        self.address.candidates(true)[0]
    }

    fn request(&self, from: Name, purpose: Purpose) -> Request {
        Request { endpoint: self.address.name, from, link: 9, purpose }
    }
}

/// Returns the same endpoint, as if its process listened at a port of this node.
fn moved(address: &Address, port: u16) -> Address {
    Address { addresses: vec![[127, 0, 0, 1].into()], port, ..address.clone() }
}

#[test]
fn a_peer_that_ends_without_a_goodbye_is_lost() {
    let (a, b) = (Process::start(), Process::start());
    let link = a.dial(&b);
    let at = link.link.address();
    drop(b.links);
    let reason = link.lost();
    assert!(reason.contains("its process ended") && reason.contains(&at.to_string()), "{reason}");
}

#[test]
fn a_link_that_was_dropped_brings_nothing_more() {
    let (a, b) = (Process::start(), Process::start());
    let Watched { link, events } = a.dial(&b);
    let other = a.dial(&b);
    drop(link);
    // The thread drops the `LinkEvents` that it called.
    assert!(matches!(events.recv_timeout(LIMIT), Err(std::sync::mpsc::RecvTimeoutError::Disconnected)));
    b.links.close_endpoint(b.address.name);
    assert!(other.says_goodbye());
}

#[test]
fn a_suspicion_counts_when_the_link_has_nothing_to_say() {
    let (a, b, c) = (Process::start(), Process::start(), Process::start());
    let (to_b, to_c) = (a.dial(&b), a.dial(&c));
    to_b.link.suspicions().report("its data broke".to_owned());
    to_b.link.suspicions().report("so did more".to_owned());
    to_c.link.suspicions().report("its data broke".to_owned());
    c.links.close_endpoint(c.address.name);
    assert!(to_c.says_goodbye(), "what the link says counts");
    let reason = to_b.lost();
    assert!(reason.starts_with("its data broke; it was at "), "{reason}");
}

#[test]
fn data_flows_beside_a_link() {
    let (a, b) = (Process::start(), Process::start());
    let link = a.dial(&b);
    let here = link.link.open_data().unwrap();
    until("a connection", || !b.taken.all().is_empty());
    let (mut there, _seat) = b.taken.all().pop().unwrap();
    let said = Fields { kind: 3, numbers: [1, 2, 3], ..Fields::default() };
    (&here.stream).write_all(&here.outbound.seal(said)).unwrap();
    let mut incoming = crate::socket::Incoming::default();
    let mut heard = None;
    until("a header", || {
        heard = incoming.read(&there.stream).unwrap().copied();
        heard.is_some()
    });
    assert_eq!(there.inbound.open(&heard.unwrap()), Ok(said));
}

#[test]
fn what_is_refused_is_told_and_ends_the_way_back() {
    let (a, b) = (Process::start(), Process::start());
    let (ab, ba) = (a.dial(&b), b.dial(&a));
    let _data = ab.link.open_data().unwrap();
    b.taken.last().refuse("it is not wanted here".to_owned(), "nobody wants it".to_owned());
    let LinkEnd::Refused { reason: told, .. } = ab.end() else { panic!("not refused") };
    assert_eq!(told, b"it is not wanted here");
    let LinkEnd::Hostile { reason, .. } = ba.end() else { panic!("not hostile") };
    assert_eq!(reason, "nobody wants it");
}

#[test]
fn a_connection_that_the_network_swallows_is_told() {
    let (a, b) = (Process::start(), Process::start());
    let (ab, ba) = (a.dial(&b), b.dial(&a));
    let _data = ab.link.open_data().unwrap();
    b.taken.last().report_silence();
    for (link, text) in [(ab, "not others"), (ba, "swallows a connection of its")] {
        let reason = link.lost();
        assert!(reason.contains(text), "{reason}");
    }
}

#[test]
fn closing_an_endpoint_closes_its_data() {
    let (a, b) = (Process::start(), Process::start());
    let link = a.dial(&b);
    let _data = link.link.open_data().unwrap();
    until("a connection", || !b.taken.all().is_empty());
    b.links.close_endpoint(b.address.name);
    until("closed connection", || b.taken.all().is_empty());
    assert!(link.says_goodbye());
    assert!(matches!(link.link.open_data(), Err(Error::Closed { .. })));
}

#[test]
fn who_takes_no_data_refuses_it() {
    let (a, b) = (Process::start(), Process::with(Options::default(), Arc::default()));
    let link = a.dial(&b);
    let Err(refused) = link.link.open_data() else { panic!("taken") };
    assert!(refused.to_string().contains("does not speak this protocol"), "{refused}");
    b.links.close_endpoint(b.address.name);
    assert!(link.says_goodbye(), "the link lived until then");
}

#[test]
fn strangers_do_not_disturb() {
    let (a, b) = (Process::start(), Process::start());
    let link = a.dial(&b);
    let silent: Vec<_> = (0..30).map(|_| TcpStream::connect(b.at()).unwrap()).collect();
    for len in 0..200usize {
        let mut stranger = TcpStream::connect(b.at()).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        // The stranger may have been turned away already, so this may fail.
        let _ = stranger.write_all(&bytes);
    }
    // A caller that knows the name of an endpoint but not its key, and a data connection without a link.
    let stranger = Address { key: Key::from_bytes([7; 32]), ..moved(&b.address, b.at().port()) };
    let Err(refused) = a.try_dial(&stranger) else { panic!("let in") };
    assert!(refused.to_string().contains("key"), "{refused}");
    let data = b.request(a.address.name, Purpose::Data);
    let refused = super::dial::dial(PROTOCOL, &[b.at()], &b.address.key, &data).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::Closed { .. }), "{refused}");
    let later = a.dial(&b);
    b.links.close_endpoint(b.address.name);
    assert!(link.says_goodbye() && later.says_goodbye(), "both lived until then");
    drop(silent);
}

#[test]
fn a_member_gets_no_more_connections_than_there_is_room_for() {
    let (a, b) = (Process::start(), Process::start());
    let link = a.dial(&b);
    let mut taken = Vec::new();
    for purpose in [Purpose::Link, Purpose::Data] {
        let request = b.request([5; 16], purpose);
        let refused = (0..=MAX_OPEN).find_map(|_| {
            match super::dial::dial(PROTOCOL, &[b.at()], &b.address.key, &request) {
                Ok(connection) => {
                    taken.push(connection);
                    None
                }
                Err(error) => Some(error.to_string()),
            }
        });
        let refused = refused.expect("no limit");
        assert!(refused.contains("as many connections as it takes"), "{refused}");
        assert!(refused.contains(&b.at().to_string()), "{refused}");
    }
    drop(taken);
    b.taken.all().clear();
    until("room", || a.try_dial(&b.address).is_ok_and(|link| link.link.open_data().is_ok()));
    b.links.close_endpoint(b.address.name);
    assert!(link.says_goodbye(), "the first link lived until then");
}

#[test]
fn a_peer_of_another_version_is_an_error_that_names_both() {
    let a = Process::start();
    let (listener, address) = listen();
    let key = a.address.key.clone();
    let thread = std::thread::spawn(move || {
        let (responder, challenge) = Responder::challenge(PROTOCOL.name, [1; 32]);
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&challenge).unwrap();
        let hello = handshake::reader().read(&stream).unwrap().unwrap();
        let newer = Protocol { version: 7, ..PROTOCOL };
        let (answer, verdict) = handshake::answer(&newer, &responder, &hello, |_| Some(key), |_| Ok(()));
        assert_eq!(verdict.err(), Some(Refusal::Version { theirs: 1, ours: 7 }));
        stream.write_all(&answer).unwrap();
    });
    let Err(error) = a.try_dial(&moved(&a.address, address.port())) else { panic!("another version") };
    assert!(matches!(error, Error::Version { theirs: 7, ours: 1, .. }), "{error}");
    thread.join().unwrap();
}

#[test]
fn every_address_is_tried_and_named() {
    let b = Process::start();
    let (_silent, silent) = listen();
    let closed = SocketAddr::from(([127, 0, 0, 1], mscclpp_test_support::reserve_port()));
    let request = b.request([6; 16], Purpose::Link);
    let candidates = [closed, silent, super::dial::tests::stranger(), b.at()];
    let (stream, _, found) = super::dial::dial(PROTOCOL, &candidates, &b.address.key, &request).unwrap();
    assert_eq!([found, stream.peer_addr().unwrap()], [b.at(); 2]);
    let gone = super::dial::dial(PROTOCOL, &[closed], &b.address.key, &request).map(|_| ()).unwrap_err();
    assert!(matches!(gone, Error::Gone { .. }) && gone.to_string().contains(&closed.to_string()), "{gone}");
}

#[test]
fn an_endpoint_that_was_closed_is_told() {
    let (a, b) = (Process::start(), Process::start());
    b.links.close_endpoint(b.address.name);
    let Err(error) = a.try_dial(&b.address) else { panic!("open") };
    assert!(matches!(error, Error::Closed { .. }), "{error}");
}

/// Plays a network that loses the first packets of a connection, so that a second attempt is needed.
#[test]
fn an_address_that_is_silent_is_tried_again() {
    let (a, b) = (Process::start(), Process::start());
    let peer = b.at();
    let (listener, address) = listen();
    let between = std::thread::spawn(move || {
        let (silent, _) = listener.accept().unwrap();
        let (here, _) = listener.accept().unwrap();
        mscclpp_test_support::relay(here, TcpStream::connect(peer).unwrap()).unwrap();
        drop(silent);
    });
    let link = a.try_dial(&moved(&b.address, address.port())).unwrap();
    assert_eq!(link.link.address(), address);
    drop(link);
    between.join().unwrap();
}

#[test]
fn an_unknown_interface_is_an_error_that_names_it() {
    let options = Options { interface: Some("nosuch0".to_owned()), ..Options::default() };
    let Err(error) = Links::start(PROTOCOL, options) else { panic!("started") };
    assert!(error.to_string().contains("nosuch0"), "{error}");
}

/// Plays a transport whose connection drops its link when the link ends.
#[test]
fn the_last_owner_may_be_the_thread_itself() {
    #[derive(Default)]
    struct Owner(Mutex<Option<Link>>);
    impl LinkEvents for Owner {
        fn ended(&self, _: LinkEnd) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let (a, b) = (Process::start(), Process::start());
    let owner = Arc::new(Owner::default());
    let link = a.links.dial(&b.address, true, a.address.name, owner.clone()).unwrap();
    let shared = Arc::downgrade(&a.links.shared);
    *owner.0.lock().unwrap() = Some(link);
    drop(a);
    assert_ne!(shared.strong_count(), 0);
    b.links.close_endpoint(b.address.name);
    until("end of the thread", || shared.strong_count() == 0);
}

#[test]
fn a_connection_that_breaks_is_known_to_both() {
    // The receiver sees it first.
    let (a, b) = (Process::start(), Process::start());
    let (ab, ba) = (a.dial(&b), b.dial(&a));
    let _data = ab.link.open_data().unwrap();
    b.taken.last().report_broken("it was cut".to_owned());
    assert!(ab.lost().contains("broke"));
    assert!(ba.lost().starts_with("it was cut"));
    // The sender sees it first.
    let (ab, ba) = (a.dial(&b), b.dial(&a));
    ab.link.suspicions().report("sending failed".to_owned());
    assert!(ab.lost().starts_with("sending failed"));
    assert!(ba.lost().contains("broke"));
}

#[test]
fn who_has_said_that_it_failed_goes_on_when_its_peer_gives_up() {
    let (a, b) = (Process::start(), Process::start());
    let (ab, ba) = (a.dial(&b), b.dial(&a));
    let _data = ab.link.open_data().unwrap();
    ba.link.tell_failure("a proxy failed".to_owned());
    assert!(matches!(ab.end(), LinkEnd::Failed(_)));
    b.taken.last().report_broken("it was cut".to_owned());
    let more = ba.events.recv_timeout(Duration::from_secs(2));
    assert!(more.is_err(), "{more:?}");
}
