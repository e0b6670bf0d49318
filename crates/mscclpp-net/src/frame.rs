//! The frames in which everything is sent on a connection between two ranks, and in every handshake.
//!
//! ```text
//! 0     1        2     3         4        8
//! 0xB5  version  kind  reserved  length   payload ...
//! ```
//! The version here is that of the frame, not of a protocol. The frame and the frames of the handshake never change,
//! so that two programs of different protocol versions can still prove to each other who they are, and then say what
//! differs.

use std::io::{self, Read};

use crate::{
    socket::read_some,
    wire::{Malformed, Wire},
};

const MARK: u8 = 0xB5;
const VERSION: u8 = 1;
/// The number of bytes before the payload.
pub const HEADER: usize = 8;

/// A whole frame. The protocol defines the kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<K> {
    /// The kind, which says what the payload means.
    pub kind: K,
    /// The content.
    pub payload: Vec<u8>,
}

/// Encodes a frame. The caller keeps to the limit of whoever reads it, which is far below 4 GiB.
#[must_use]
pub fn encode(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + payload.len());
    out.extend([MARK, VERSION, kind, 0]);
    payload.len().put(&mut out);
    out.extend_from_slice(payload);
    out
}

/// Cuts a stream of bytes into frames. Keeps no more than the bytes of one frame that have arrived, plus one read.
pub struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    limit: usize,
}

impl FrameReader {
    /// Makes a reader for which a frame with a payload larger than `limit` is malformed.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, limit }
    }

    /// Sets the limit of the frames that follow.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
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

    /// Takes the next whole frame, if it has arrived.
    ///
    /// # Errors
    /// If the bytes that have arrived cannot become a frame of one of these kinds.
    pub fn take<K: TryFrom<u8>>(&mut self) -> Result<Option<Frame<K>>, Malformed> {
        let pending = &self.buffer[self.start..];
        // Wrong first bytes are reported at once, before a whole header has come.
        if pending.first().is_some_and(|&mark| mark != MARK) {
            return Err(Malformed("a frame does not begin with the mark of one"));
        }
        if pending.get(1).is_some_and(|&version| version != VERSION) {
            return Err(Malformed("the version of a frame's envelope is not 1"));
        }
        let Some((header, rest)) = pending.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let kind = K::try_from(header[2]).map_err(|_| Malformed("a frame is of no known kind"))?;
        if header[3] != 0 {
            return Err(Malformed("the reserved byte of a frame is not 0"));
        }
        let length = length(header);
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

    /// Takes the next frame from a connection that does not block, once all of the frame has arrived. Reads no byte
    /// behind it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the bytes cannot become a frame, [`io::ErrorKind::UnexpectedEof`] if the
    /// connection ended too early; otherwise the system's error.
    pub fn read<K: TryFrom<u8>>(&mut self, mut stream: impl Read) -> io::Result<Option<Frame<K>>> {
        loop {
            let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            if let Some(frame) = self.take().map_err(malformed)? {
                return Ok(Some(frame));
            }
            let mut bytes = [0; 256];
            let missing = self.missing().min(bytes.len());
            let Some(count) = read_some(&mut stream, &mut bytes[..missing])? else { return Ok(None) };
            self.push(&bytes[..count]);
        }
    }

    /// Returns how many bytes the next frame, or its header, still lacks.
    fn missing(&self) -> usize {
        let pending = &self.buffer[self.start..];
        let whole = HEADER + pending.first_chunk().map_or(0, length);
        whole.saturating_sub(pending.len())
    }
}

/// Reads the length of the payload from a header.
fn length(header: &[u8; HEADER]) -> usize {
    u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_checked_before_anything_is_kept_for_it() {
        let mut bytes = encode(16, &[]);
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut reader = FrameReader::new(32 * 1024);
        reader.push(&bytes);
        assert!(reader.take::<u8>().is_err());
        assert!(reader.buffer.capacity() <= 64);
    }
}
