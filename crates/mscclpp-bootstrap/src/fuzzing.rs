//! The parsers of bytes from outside, for the fuzz targets and the tests of malformed input, and a rank that tests
//! control. Not part of the API.

use crate::address::Address;
use crate::collective::call;
use crate::protocol::frame::{FrameReader, Kind, MAX_HANDSHAKE, MAX_PAYLOAD};
use crate::protocol::handshake::{self, JobKey};
use crate::protocol::hello::{Hello, PROTOCOL_VERSION, Process, Purpose, Rejection};
use crate::protocol::message::{Assembler, Sequence};
use crate::protocol::notice;
use crate::protocol::table::{Entry, Place, Table};
use crate::unique_id::UniqueId;
use mscclpp_net::handshake::{Frame, Initiator, Kind as Said};
use mscclpp_net::wire::Wire;

/// A rank that a test controls: it goes through the handshake by which a rank joins, and then does what the test
/// wants.
pub struct RawRank {
    key: JobKey,
    hello: Hello,
    initiator: Option<Initiator>,
    reader: FrameReader,
}

impl RawRank {
    /// Makes a rank of a job without a key.
    pub fn without_key(n_ranks: u32, rank: u32) -> Self {
        Self::with_key(JobKey::none(), n_ranks, rank)
    }

    /// Makes a rank of a job with a secret.
    pub fn of_secret(secret: &str, n_ranks: u32, rank: u32) -> Self {
        Self::with_key(JobKey::of_secret(secret), n_ranks, rank)
    }

    /// Makes a rank of a job with a unique id.
    pub fn of_id(id: &UniqueId, n_ranks: u32, rank: u32) -> Self {
        Self::with_key(JobKey::of_unique_id(id.key()), n_ranks, rank)
    }

    fn with_key(key: JobKey, n_ranks: u32, rank: u32) -> Self {
        let hello = hello(key.secret, n_ranks, rank);
        Self { key, hello, initiator: None, reader: FrameReader::new(MAX_HANDSHAKE) }
    }

    /// Changes the version of the protocol that the rank claims.
    pub fn of_version(mut self, version: u32) -> Self {
        self.hello.version = version;
        self
    }

    /// Takes bytes that arrived. Returns the bytes to send, or, at the end, the answer to the rank as the error.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        self.reader.push(bytes);
        let Some(frame) = self.reader.take().map_err(|e| e.to_string())? else { return Ok(Vec::new()) };
        match self.initiator.take() {
            None => {
                let (initiator, bytes) =
                    self.key.answer(&self.hello, &frame).map_err(|stranger| stranger.to_string())?;
                self.initiator = Some(initiator);
                Ok(bytes)
            }
            Some(initiator) => Err(match self.key.conclude(initiator, &frame) {
                Ok(answer) => format!("{answer:?}"),
                Err(stranger) => stranger.to_string(),
            }),
        }
    }
}

/// Returns the hello of a rank of this process that joins.
pub(crate) fn hello(secret: bool, n_ranks: u32, rank: u32) -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        secret,
        purpose: Purpose::Join,
        job: [0; 16],
        n_ranks,
        from: rank,
        to: 0,
        nonce: [7; 32],
        process: Process::own(),
        generation: 0,
    }
}

/// Returns the answer of a rank of a job without a key to a challenge of zeros, which nobody makes. It serves as a
/// starting point for malformed answers, and as a replayed answer.
pub fn stale_hello(version: u32, n_ranks: u32, rank: u32, keyed: bool) -> Vec<u8> {
    let hello = Hello { version, ..hello(keyed, n_ranks, rank) };
    JobKey::none().answer(&hello, &challenge()).map_or_else(|_| Vec::new(), |(_, bytes)| bytes)
}

fn challenge() -> Frame {
    Frame { kind: Said::Challenge, payload: vec![0; 32] }
}

/// Parses a stream of bytes as one from a stranger that connected.
pub fn stranger(bytes: &[u8]) {
    let mut reader = FrameReader::new(MAX_HANDSHAKE);
    let (responder, _) = handshake::challenge([1; 32]);
    reader.push(bytes);
    if let Ok(Some(frame)) = reader.take() {
        drop(JobKey::none().verify(&responder, &frame));
    }
}

/// Parses a stream of bytes as one from a stranger that we connected to: its challenge, and its answer to our proof.
pub fn answer(bytes: &[u8]) {
    let mut reader = FrameReader::new(MAX_HANDSHAKE);
    let (key, hello) = (JobKey::none(), hello(false, 2, 1));
    reader.push(bytes);
    if let Ok(Some(frame)) = reader.take() {
        drop(key.answer(&hello, &frame));
        if let Ok((initiator, _)) = key.answer(&hello, &challenge()) {
            drop(key.conclude(initiator, &frame));
        }
        // This follows a proof, which random bytes do not have.
        drop(Rejection::parse(&frame.payload));
    }
}

/// Parses a stream of bytes as one from a member.
pub fn member(bytes: &[u8]) {
    let mut reader = FrameReader::new(MAX_PAYLOAD);
    let mut assembler = Assembler::default();
    let mut sequence = Sequence::default();
    reader.push(bytes);
    while let Ok(Some(frame)) = reader.take::<Kind>() {
        match frame.kind {
            Kind::Message | Kind::Rest => match assembler.push(frame) {
                Ok(Some(message)) => {
                    for due in sequence.push(message).unwrap_or_default() {
                        call::check(&due.bytes);
                    }
                }
                Ok(None) => {}
                Err(_) => return,
            },
            Kind::Notice => drop(notice::parse(&frame.payload)),
            Kind::Join => drop(Entry::parse(&frame.payload)),
            Kind::Table => table(&frame.payload),
            Kind::Parent => drop(Place::parse(&frame.payload)),
            _ => {}
        }
    }
}

/// Parses bytes as a table of four ranks.
pub fn table(bytes: &[u8]) {
    if let Ok(table) = Table::parse(bytes.to_vec(), 1, 4) {
        for rank in 0..5 {
            table.addresses(rank);
        }
    }
}

/// Returns the id of the job, according to the environment, of a rank that is given its number and the address.
pub fn job_id(
    lookup: impl Fn(&'static str) -> Option<std::ffi::OsString>,
    n_ranks: usize,
) -> crate::Result<Option<String>> {
    crate::launch::launchers::job_id(lookup, n_ranks)
}

/// Parses a text as an address.
pub fn address(text: &str) {
    if let Ok(address) = Address::parse(text, None) {
        let again = Address::parse(&address.to_string(), None);
        assert_eq!(again.ok(), Some(address), "an address that was understood can be printed and read again");
    }
}

/// Returns the kinds of the frames in a stream.
pub fn kinds(bytes: &[u8]) -> Vec<u8> {
    let mut reader = FrameReader::new(usize::MAX);
    reader.push(bytes);
    std::iter::from_fn(|| reader.take::<u8>().ok()?).map(|frame| frame.kind).collect()
}
