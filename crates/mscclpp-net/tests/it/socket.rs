//! Tests of sockets that do not block.

use std::{
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use mscclpp_net::socket::{Incoming, accept, is_connected, listen};
use mscclpp_test_support::reserve_port;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

#[test]
fn a_connection_to_oneself_is_refused() {
    let own = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    own.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    own.connect(&own.local_addr().unwrap()).unwrap();
    let error = is_connected(&own.into()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(is_connected(&other).unwrap());
}

/// Linux refuses both in about one of 20,000 rounds.
#[test]
fn one_of_two_that_begin_at_once_listens() {
    const ROUNDS: usize = 20_000;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, reserve_port()));
    let (come, listening) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let meet = |meeting: usize| {
        come.fetch_add(1, Ordering::SeqCst);
        while come.load(Ordering::SeqCst) < 2 * meeting {
            thread::yield_now();
        }
    };
    let take_part = || {
        for round in 0..ROUNDS {
            meet(2 * round + 1);
            let listener = listen(address, None);
            listening.fetch_add(usize::from(listener.is_ok()), Ordering::SeqCst);
            meet(2 * round + 2);
        }
    };
    thread::scope(|scope| {
        scope.spawn(take_part);
        take_part();
    });
    assert_eq!(listening.into_inner(), ROUNDS);
}

#[test]
fn a_message_is_there_when_all_of_it_is() {
    let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None).unwrap();
    let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let here = loop {
        if let Some((stream, from)) = accept(&listener).unwrap() {
            assert_eq!(from, there.local_addr().unwrap());
            break stream;
        }
    };
    let mut incoming = Incoming::<4>::default();
    assert!(incoming.read(&here).unwrap().is_none());
    there.write_all(b"abc").unwrap();
    while incoming.so_far() != b"abc" {
        assert!(incoming.read(&here).unwrap().is_none());
    }
    there.write_all(b"de").unwrap();
    let message = loop {
        if let Some(message) = incoming.read(&here).unwrap() {
            break *message;
        }
    };
    assert_eq!(&message, b"abcd");

    drop(there);
    let mut rest = Incoming::<4>::default();
    let error = loop {
        if let Err(error) = rest.read(&here) {
            break error;
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(rest.so_far(), b"e");
}
