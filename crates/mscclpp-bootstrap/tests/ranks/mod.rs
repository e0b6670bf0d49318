//! Functions that start the ranks of a job as threads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mscclpp_bootstrap::fuzzing::RawRank;
use mscclpp_bootstrap::job::Limits;
use mscclpp_bootstrap::{
    Bootstrap, Env, Error, LocalBootstrap, MeetingPlace, TcpBootstrap, TcpBootstrapBuilder,
};
#[allow(unused_imports, reason = "not every test needs one")]
pub(crate) use mscclpp_test_support::{in_threads, reserve_port as free_port};

/// A time limit longer than anything takes that works. Calls that are expected to fail fail sooner.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Makes the settings of a rank, whatever the environment of the tests says.
pub(crate) fn builder(rank: usize, n: usize) -> TcpBootstrapBuilder {
    TcpBootstrap::builder(rank, n).env(Env::default()).timeout(PATIENCE)
}

/// Makes the settings of a rank of a job that fails, for which no other rank comes later: it waits for less time.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn brief(rank: usize, n: usize) -> TcpBootstrapBuilder {
    let soon = Duration::from_millis(500);
    builder(rank, n).limits(Limits { earlier_job: soon, claim: soon, linger: soon, ..Limits::default() })
}

/// Joins as one rank.
pub(crate) fn connect(
    rank: usize,
    n: usize,
    at: impl Into<MeetingPlace>,
    timeout: Duration,
) -> Result<TcpBootstrap, Error> {
    builder(rank, n).timeout(timeout).connect(at)
}

/// Runs a test of ranks whose time runs out after something else has happened. On a busy machine that can take longer, so a
/// test that fails runs again with more time.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn with_enough_time(test: impl Fn(Duration)) {
    let enough = |seconds| catch_unwind(AssertUnwindSafe(|| test(Duration::from_secs(seconds)))).is_ok();
    if ![1, 4].into_iter().any(enough) {
        test(Duration::from_secs(16));
    }
}

/// Connects to rank 0, once it listens, and takes its challenge. Returns the connection, and the bytes to send in
/// answer.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn challenged(rank: &mut RawRank, at: &str) -> (TcpStream, Vec<u8>) {
    let stream = loop {
        match TcpStream::connect(at) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let proof = hear(rank, &stream).unwrap();
    (stream, proof)
}

/// Goes through the handshake of a rank that joins, and does no more. Returns the connection, and the answer of rank
/// 0.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn prove(mut rank: RawRank, at: &str) -> (TcpStream, String) {
    let (mut stream, proof) = challenged(&mut rank, at);
    stream.write_all(&proof).unwrap();
    let answer = hear(&mut rank, &stream).unwrap_err();
    (stream, answer)
}

/// Reads until a rank has bytes to send, or has its answer.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn hear(rank: &mut RawRank, mut stream: &TcpStream) -> Result<Vec<u8>, String> {
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "dropped without an answer");
        let bytes = rank.on_bytes(&buffer[..n])?;
        if !bytes.is_empty() {
            return Ok(bytes);
        }
    }
}

/// Starts all ranks of a job over TCP.
#[allow(dead_code, reason = "not every test needs one")]
pub(crate) fn tcp_job(n: usize) -> Vec<TcpBootstrap> {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    in_threads(0..n, |rank| connect(rank, n, id, PATIENCE).unwrap())
}

/// Starts a job over TCP and one in the process.
#[allow(dead_code, reason = "not every test needs one")]
pub(crate) fn both_kinds(n: usize) -> [Vec<Box<dyn Bootstrap>>; 2] {
    fn boxed<B: Bootstrap + 'static>(ranks: Vec<B>) -> Vec<Box<dyn Bootstrap>> {
        ranks.into_iter().map(|rank| Box::new(rank) as _).collect()
    }
    [boxed(tcp_job(n)), boxed(LocalBootstrap::group(n))]
}
