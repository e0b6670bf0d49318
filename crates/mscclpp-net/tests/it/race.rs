//! Tests of finding a peer among several addresses that are tried side by side.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use mscclpp_net::{
    SystemError,
    dial::{Handshake, Lost, race},
    socket::Incoming,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A handshake in which the peer says `yes!`, and others say something else.
#[derive(Default)]
struct Word(Incoming<4>);

impl Handshake for Word {
    type Session = ();
    type Refusal = [u8; 4];

    fn advance(&mut self, stream: &TcpStream) -> Result<Option<()>, Lost<[u8; 4]>> {
        match self.0.read(stream)? {
            None => Ok(None),
            Some(b"yes!") => Ok(Some(())),
            Some(word) => Err(Lost::Refused(*word)),
        }
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn saying(word: &'static [u8]) -> SocketAddr {
    let (listener, address) = listen();
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(word);
            streams.push(stream);
        }
    });
    address
}

fn closed() -> SocketAddr {
    listen().1
}

#[test]
fn the_peer_is_found_among_others() {
    let (_silent, silent) = listen();
    let (stranger, peer) = (saying(b"no!!"), saying(b"yes!"));
    let candidates = [closed(), silent, stranger, peer];
    let (stream, (), address) = race(&candidates, LIMIT, || Ok(Word::default())).unwrap().unwrap();
    assert_eq!(address, peer);
    assert_eq!(stream.peer_addr().unwrap(), peer);
}

#[test]
fn how_each_address_failed_is_told() {
    let (_silent, silent) = listen();
    let (stranger, closed) = (saying(b"no!!"), closed());
    let limit = Duration::from_secs(1);
    let unreached = race(&[closed, silent, stranger], limit, || Ok(Word::default())).unwrap();
    let unreached = unreached.unwrap_err();
    assert_eq!(unreached.silent, [silent]);
    assert!(unreached.after >= limit);
    let [(first, Lost::Io(error)), (second, Lost::Refused(word))] = &unreached.failed[..] else {
        panic!("{unreached:?}")
    };
    assert_eq!((*first, error.kind()), (closed, io::ErrorKind::ConnectionRefused));
    assert_eq!((*second, word), (stranger, b"no!!"));
}

#[test]
fn a_handshake_that_cannot_begin_ends_it() {
    let peer = saying(b"yes!");
    let source = || io::Error::from(io::ErrorKind::Unsupported);
    let begin = || Err(SystemError { operation: "beginning", source: source() });
    assert_eq!(race::<Word>(&[peer], LIMIT, begin).unwrap_err().operation, "beginning");
}
