//! The envelope of everything on a connection.
//!
//! ```text
//! 0     1        2     3         4        8
//! 0xB5  version  kind  reserved  length   payload ...
//! ```
//! The envelope's version is not the protocol's: it and the frames of the handshake never change, so that two programs
//! of different protocol versions can still prove to each other who they are, and then tell what differs.

use mscclpp_net::wire::Malformed;

const MARK: u8 = 0xB5;
const VERSION: u8 = 1;
/// Bytes before the payload.
pub(crate) const HEADER: usize = 8;
/// The largest payload of a frame; messages that are longer travel in several.
pub(crate) const MAX_PAYLOAD: usize = 32 * 1024;
/// The largest payload of a frame of the handshake: all that a stranger can make us keep.
pub(crate) const MAX_HANDSHAKE: usize = 4 * 1024;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Handshake: a nonce to answer.
    Challenge = 1,
    /// Handshake: my proof, who I am, whom I want, and my nonce.
    Hello = 2,
    /// Handshake: my proof, and you are in.
    Accept = 3,
    /// Handshake: my proof, and why you are not in.
    Reject = 4,
    /// Handshake: you do not belong here.
    Refuse = 5,
    /// Handshake, in place of a challenge: there is no room for another connection, and of how many descriptors.
    Full = 6,
    /// A message, or its beginning.
    Message = 16,
    /// More of the message.
    Rest = 17,
    /// This many bytes have been taken in; send as many more.
    Credit = 18,
    /// The job has failed, and why.
    Notice = 19,
    /// I leave; all I had to send has been sent.
    Goodbye = 20,
    /// I will send nothing more on this of our two connections.
    Retire = 21,
    /// Formation: where I listen and on which host I am.
    Join = 32,
    /// Formation: ranks that are still missing.
    Progress = 33,
    /// Formation: a part of the table of ranks.
    Table = 34,
    /// Formation: my whole subtree is connected.
    Ready = 35,
    /// Formation: everybody is.
    Go = 36,
    /// Formation: rank 0 closes the connections over which the job formed.
    Dismiss = 37,
    /// Formation: where your parent in the tree listens.
    Parent = 38,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{
            Accept, Challenge, Credit, Dismiss, Full, Go, Goodbye, Hello, Join, Message, Notice, Parent,
            Progress, Ready, Refuse, Reject, Rest, Retire, Table,
        };
        [
            Challenge, Hello, Accept, Reject, Refuse, Full, Message, Rest, Credit, Notice, Goodbye, Retire,
            Join, Progress, Table, Ready, Go, Dismiss, Parent,
        ]
        .into_iter()
        .find(|&kind| kind as u8 == byte)
    }
}

/// A whole frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) payload: Vec<u8>,
}

/// The bytes of a frame.
///
/// The payload must not be over [`MAX_PAYLOAD`]; what makes frames keeps to it.
pub(crate) fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= MAX_PAYLOAD);
    let mut out = Vec::with_capacity(HEADER + payload.len());
    out.extend([MARK, VERSION, kind as u8, 0]);
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

/// Cuts a stream of bytes into frames. Keeps no more than has arrived of one frame, plus one read.
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    limit: usize,
}

impl FrameReader {
    /// Frames with a larger payload than `limit` are malformed.
    pub(crate) fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, limit }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        if self.buffer.is_empty() && self.buffer.capacity() > bytes.len().max(4096) {
            // An idle connection holds no memory.
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let pending = &self.buffer[self.start..];
        // What is wrong with the first bytes is said at once, not when a header's worth has come.
        if pending.first().is_some_and(|&mark| mark != MARK) {
            return Err(Malformed("a frame does not begin with the mark of one"));
        }
        if pending.get(1).is_some_and(|&version| version != VERSION) {
            return Err(Malformed("the version of a frame's envelope is not 1"));
        }
        let Some((header, rest)) = pending.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let kind = Kind::from_byte(header[2]).ok_or(Malformed("a frame is of no known kind"))?;
        if header[3] != 0 {
            return Err(Malformed("the reserved byte of a frame is not 0"));
        }
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > self.limit {
            return Err(Malformed("a frame is longer than allowed"));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame { kind, payload: payload.to_vec() };
        self.start += HEADER + length;
        Ok(Some(frame))
    }

    /// Whether part of a frame has arrived.
    #[cfg(test)]
    pub(crate) fn is_within_a_frame(&self) -> bool {
        self.start < self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cutting() {
        let frames = [(Kind::Hello, vec![1, 2, 3]), (Kind::Go, vec![]), (Kind::Message, vec![7; 1000])];
        let stream: Vec<u8> = frames.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
        for piece in [1, 2, 3, 7, 8, 9, 500, stream.len()] {
            let mut reader = FrameReader::new(MAX_PAYLOAD);
            let mut got = Vec::new();
            for bytes in stream.chunks(piece) {
                reader.push(bytes);
                while let Some(frame) = reader.next().unwrap() {
                    got.push((frame.kind, frame.payload));
                }
            }
            assert_eq!(got, frames);
            assert!(!reader.is_within_a_frame());
        }
    }

    #[test]
    fn a_length_is_checked_before_anything_is_kept_for_it() {
        let mut bytes = encode(Kind::Message, &[]);
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut reader = FrameReader::new(MAX_PAYLOAD);
        reader.push(&bytes);
        assert!(reader.next().is_err());
        assert!(reader.buffer.capacity() <= 64);
    }

    #[test]
    fn every_kind_has_a_byte_of_its_own() {
        let known = (0..=255).filter_map(Kind::from_byte).count();
        assert_eq!(known, 19);
        assert!((0..=255).filter_map(|b| Kind::from_byte(b).map(|k| (k, b))).all(|(k, b)| k as u8 == b));
    }

    #[test]
    fn a_broken_header_is_seen_as_early_as_can_be() {
        for (bytes, reason) in [
            (&[0x47][..], "mark"),
            (&[MARK, 2], "version"),
            (&[MARK, VERSION, 99, 0, 0, 0, 0, 0], "kind"),
            (&[MARK, VERSION, 1, 1, 0, 0, 0, 0], "reserved"),
        ] {
            let mut reader = FrameReader::new(MAX_PAYLOAD);
            reader.push(bytes);
            assert!(reader.next().unwrap_err().to_string().contains(reason));
        }
    }
}
