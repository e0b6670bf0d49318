//! Tests of strangers at the address where rank 0 should be. Whatever they say without the job's key, they do not end
//! a job that has one: a rank asks again, until its time is up.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::ranks::{PATIENCE, builder, in_threads, with_enough_time};
use mscclpp_bootstrap::{Bootstrap, Error, TcpBootstrap};
use mscclpp_net::frame::encode;

/// The kinds of frames.
const CHALLENGE: u8 = 1;
const ACCEPT: u8 = 3;
const REJECT: u8 = 4;
const REFUSE: u8 = 5;

/// Returns a stranger's answers to the proof of a rank: that its keys are wrong in either way; a false proof followed
/// by the job's id or by a reason for a refusal; and frames that are no answer at all.
fn forged() -> [Vec<u8>; 6] {
    [
        encode(REFUSE, &[1]),
        encode(REFUSE, &[0]),
        encode(ACCEPT, &[7; 48]),
        encode(REJECT, &[[3; 32].as_slice(), &[3, 2, 0, 0, 0]].concat()),
        encode(ACCEPT, &[]),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    ]
}

fn join(rank: usize, at: &str, timeout: Duration) -> Result<TcpBootstrap, Error> {
    builder(rank, 2).secret("swordfish").timeout(timeout).connect(at)
}

/// Challenges a process that has connected, and answers its proof.
fn answer(mut stream: TcpStream, answer: &[u8]) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&encode(CHALLENGE, &[0; 32])).unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    stream.write_all(answer).unwrap();
    // Waits until the rank has gone; it may leave before it has read all of this.
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Accepts the next connection of a rank. Returns `None` if the rank has given up.
fn next<T>(stranger: &TcpListener, rank: &ScopedJoinHandle<'_, T>) -> Option<TcpStream> {
    stranger.set_nonblocking(true).unwrap();
    while !rank.is_finished() {
        match stranger.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return Some(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    }
    None
}

#[test]
fn what_a_stranger_says_does_not_end_a_job_with_a_key() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = stranger.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        let one = scope.spawn(|| join(1, &at, PATIENCE));
        for forged in forged() {
            let Some(stream) = next(&stranger, &one) else { break };
            answer(stream, &forged);
        }
        // A child that another test starts may have a copy for a moment.
        rustix::net::shutdown(&stranger, rustix::net::Shutdown::Both).unwrap();
        drop(stranger);
        // Now rank 0 gets its port.
        let zero = scope.spawn(|| join(0, &at, PATIENCE));
        let job = [zero, one].map(|rank| rank.join().unwrap().unwrap());
        in_threads(0..2, |rank| job[rank].barrier().unwrap());
    });
}

#[test]
fn when_time_is_up_the_error_says_what_was_heard() {
    with_enough_time(|timeout| drop(in_threads(0..4, |i| hears(&forged()[i], timeout))));
}

/// Joins as a rank that a stranger answers so, until time is up.
fn hears(forged: &[u8], timeout: Duration) {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = stranger.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = thread::scope(|scope| {
        let one = scope.spawn(|| join(1, &at, timeout).map(drop));
        while let Some(stream) = next(&stranger, &one) {
            answer(stream, forged);
        }
        one.join().unwrap().unwrap_err()
    });
    assert!(started.elapsed() >= timeout, "it may have been a stranger's word: {error}");
    match &error {
        Error::Unauthenticated { address, .. } => assert_eq!(*address, at),
        other => panic!("{other:?}"),
    }
    let message = error.to_string();
    assert!(
        message.contains("rank 0") && message.contains("key") && message.contains("stranger"),
        "{message}"
    );
}
