//! The parsers of bytes from outside, for the fuzz targets and the tests of malformed input. Not part of the API.

use crate::address::Address;
use crate::collective;
use crate::protocol::frame::{self, FrameReader, Kind, MAX_HANDSHAKE, MAX_PAYLOAD};
use crate::protocol::handshake::{Hello, Initiator, PROTOCOL_VERSION, Purpose, Responder, ResponderStep};
use crate::protocol::key::Key;
use crate::protocol::message::{Assembler, Sequence};
use crate::protocol::notice;
use crate::protocol::table::{Entry, Table};

/// The first frame of a rank that wants to join, as a starting point for malformed ones.
pub fn hello_frame(version: u32, n_ranks: u32, rank: u32, keyed: bool) -> Vec<u8> {
    Initiator::start(Key::none(), &hello(version, n_ranks, rank, keyed)).1
}

fn hello(version: u32, n_ranks: u32, rank: u32, keyed: bool) -> Hello {
    let purpose = Purpose::Join;
    Hello { version, secret: keyed, purpose, job: [0; 16], n_ranks, from: rank, to: 0, nonce: [7; 32] }
}

/// The version of the protocol.
pub fn protocol_version() -> u32 {
    PROTOCOL_VERSION
}

/// A rank of any protocol version that goes through the handshake of a job without a key: give it what arrives, send
/// what it returns.
pub struct AnyVersion {
    initiator: Initiator,
    reader: FrameReader,
}

impl AnyVersion {
    /// The rank, and the first bytes to send.
    pub fn start(version: u32, n_ranks: u32, rank: u32) -> (Self, Vec<u8>) {
        let (initiator, bytes) = Initiator::start(Key::none(), &hello(version, n_ranks, rank, false));
        (Self { initiator, reader: FrameReader::new(MAX_HANDSHAKE) }, bytes)
    }

    /// Takes what arrived; gives what to send, or at the end how it was answered.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        use crate::protocol::handshake::InitiatorStep;
        self.reader.push(bytes);
        let mut out = Vec::new();
        while let Some(frame) = self.reader.next().map_err(|e| e.to_string())? {
            match self.initiator.on_frame(&frame).map_err(|e| e.to_string())? {
                InitiatorStep::Send(bytes) => out.extend(bytes),
                answer => return Err(format!("{answer:?}")),
            }
        }
        Ok(out)
    }
}

/// A stream of bytes as a stranger's, up to the point where it would have to prove itself.
pub fn stranger(bytes: &[u8]) {
    let mut reader = FrameReader::new(MAX_HANDSHAKE);
    let mut responder = Responder::new(Key::none(), [1; 32]);
    reader.push(bytes);
    while let Ok(Some(frame)) = reader.next() {
        match responder.on_frame(&frame) {
            Ok(ResponderStep::Send(_)) => {}
            Ok(ResponderStep::Verified(_)) | Err(_) => return,
        }
    }
}

/// A stream of bytes as the answer to our hello.
pub fn answer(bytes: &[u8]) {
    let (mut initiator, _) = Initiator::start(Key::none(), &hello(PROTOCOL_VERSION, 2, 1, false));
    let mut reader = FrameReader::new(MAX_HANDSHAKE);
    reader.push(bytes);
    while let Ok(Some(frame)) = reader.next() {
        if initiator.on_frame(&frame).is_err() {
            return;
        }
    }
}

/// A stream of bytes as a member's.
pub fn member(bytes: &[u8]) {
    let mut reader = FrameReader::new(MAX_PAYLOAD);
    let mut assembler = Assembler::default();
    let mut sequence = Sequence::default();
    reader.push(bytes);
    while let Ok(Some(frame)) = reader.next() {
        match frame.kind {
            Kind::Message | Kind::Rest => match assembler.push(frame) {
                Ok(Some(message)) => {
                    for due in sequence.push(message).unwrap_or_default() {
                        collective_message(&due.bytes);
                    }
                }
                Ok(None) => {}
                Err(_) => return,
            },
            Kind::Notice => drop(notice::parse(&frame.payload)),
            Kind::Join => drop(Entry::parse(&frame.payload)),
            Kind::Table => table(&frame.payload),
            _ => {}
        }
    }
}

/// Bytes as a table of four ranks.
pub fn table(bytes: &[u8]) {
    if let Ok(table) = Table::parse(bytes.to_vec(), 1, 4) {
        for rank in 0..5 {
            table.addresses(rank);
        }
    }
}

/// Bytes as a message of a collective.
pub fn collective_message(bytes: &[u8]) {
    collective::check(bytes);
}

/// A text as an address.
pub fn address(text: &str) {
    if let Ok(address) = Address::parse(text) {
        let again = Address::parse(&address.to_string());
        assert_eq!(again.ok(), Some(address), "an address that was understood can be printed and read again");
    }
}

/// A frame of kind number `kind`, which may be unknown.
pub fn frame_of(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame::encode(Kind::Hello, &payload[..payload.len().min(MAX_PAYLOAD)]);
    bytes[2] = kind;
    bytes
}
