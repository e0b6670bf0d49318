//! Messages of any size over frames of limited size, and their order over several connections.
//!
//! The frames of one message follow each other on one connection. Messages to one peer carry consecutive numbers, so
//! that a pair of ranks whose two connections crossed can give one up at any time without changing the order.

use std::collections::BTreeMap;

use crate::inbox::Channel;
use crate::protocol::frame::{self, Frame, Kind, MAX_PAYLOAD};
use mscclpp_net::wire::{Malformed, Reader, Wire};

/// The number of bytes before the data in the first frame: channel, whether it is the last frame, tag, number.
const FIRST: usize = 1 + 1 + 8 + 8;
/// The number of bytes before the data in the other frames: whether it is the last.
const OTHER: usize = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub channel: Channel,
    pub tag: u64,
    pub number: u64,
    pub bytes: Vec<u8>,
}

pub fn frames(channel: Channel, tag: u64, number: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
    let head = bytes.len().min(MAX_PAYLOAD - FIRST);
    let (first, rest) = bytes.split_at(head);
    let mut payload = Vec::with_capacity(FIRST + first.len());
    (channel, rest.is_empty(), tag, number).put(&mut payload);
    payload.extend_from_slice(first);
    let mut frames = vec![frame::encode(Kind::Message, &payload)];
    let mut chunks = rest.chunks(MAX_PAYLOAD - OTHER).peekable();
    while let Some(chunk) = chunks.next() {
        payload.clear();
        chunks.peek().is_none().put(&mut payload);
        payload.extend_from_slice(chunk);
        frames.push(frame::encode(Kind::Rest, &payload));
    }
    frames
}

/// Assembles the frames of one connection to messages. Its memory grows only with the bytes that arrive: no length
/// from outside is trusted.
#[derive(Default)]
pub struct Assembler {
    partial: Option<Message>,
}

impl Assembler {
    /// Takes a frame of kind [`Kind::Message`] or [`Kind::Rest`].
    pub fn push(&mut self, frame: Frame) -> Result<Option<Message>, Malformed> {
        let mut reader = Reader::new(&frame.payload);
        let (message, last) = match (frame.kind, self.partial.take()) {
            (Kind::Message, None) => {
                let (channel, last, tag, number) = reader.take()?;
                let mut bytes = frame.payload;
                bytes.drain(..FIRST);
                (Message { channel, tag, number, bytes }, last)
            }
            (Kind::Rest, Some(mut message)) => {
                let last = reader.take()?;
                message.bytes.extend_from_slice(reader.rest());
                (message, last)
            }
            (Kind::Message, Some(_)) => {
                return Err(Malformed("a message begins before the last one has ended"));
            }
            _ => return Err(Malformed("a message goes on that has not begun")),
        };
        if last {
            return Ok(Some(message));
        }
        self.partial = Some(message);
        Ok(None)
    }
}

/// The messages of one peer in their order, whichever connections they took.
#[derive(Default)]
pub struct Sequence {
    next: u64,
    early: BTreeMap<u64, Message>,
}

impl Sequence {
    /// Returns how many messages have been delivered.
    pub fn delivered(&self) -> u64 {
        self.next
    }

    /// Takes a message. Returns those that are due. A number that was seen before breaks the protocol.
    pub fn push(&mut self, message: Message) -> Result<Vec<Message>, Malformed> {
        if message.number < self.next || self.early.contains_key(&message.number) {
            return Err(Malformed("a message has the number of an earlier one"));
        }
        self.early.insert(message.number, message);
        let mut due = Vec::new();
        while let Some(message) = self.early.remove(&self.next) {
            self.next += 1;
            due.push(message);
        }
        Ok(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame::FrameReader;

    fn carry(frames: Vec<Vec<u8>>) -> Vec<Message> {
        let mut reader = FrameReader::new(MAX_PAYLOAD);
        let mut assembler = Assembler::default();
        let mut got = Vec::new();
        for frame in frames {
            reader.push(&frame);
            while let Some(frame) = reader.take().unwrap() {
                got.extend(assembler.push(frame).unwrap());
            }
        }
        got
    }

    #[test]
    fn sizes_around_the_edges_of_frames() {
        for size in
            [0, 1, MAX_PAYLOAD - FIRST, MAX_PAYLOAD - FIRST + 1, 2 * MAX_PAYLOAD - FIRST - OTHER, 1 << 20]
        {
            for size in [size, size + 1] {
                let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
                let got = carry(frames(Channel::Group, 77, 5, &bytes));
                assert_eq!(got, [Message { channel: Channel::Group, tag: 77, number: 5, bytes }]);
            }
        }
    }

    #[test]
    fn frames_out_of_place_are_malformed() {
        let mut assembler = Assembler::default();
        assert!(assembler.push(Frame { kind: Kind::Rest, payload: vec![1] }).is_err());
        let mut open = vec![0, 0];
        open.extend([0; 16]);
        assert_eq!(assembler.push(Frame { kind: Kind::Message, payload: open.clone() }), Ok(None));
        assert!(assembler.push(Frame { kind: Kind::Message, payload: open }).is_err());
        assert!(Assembler::default().push(Frame { kind: Kind::Message, payload: vec![0; 5] }).is_err());
    }

    #[test]
    fn numbers_restore_the_order() {
        let message = |number| Message { channel: Channel::User, tag: 0, number, bytes: vec![] };
        let mut sequence = Sequence::default();
        let mut got = Vec::new();
        for number in [1, 3, 0, 2, 4] {
            got.extend(sequence.push(message(number)).unwrap().into_iter().map(|m| m.number));
        }
        assert_eq!(got, [0, 1, 2, 3, 4]);
        assert!(sequence.push(message(2)).is_err());
    }
}
