//! What travels, without any socket, thread or clock: tested as a pair in memory.
//!
//! A connection begins with a [`handshake`], in which both ends prove that they have the key of the endpoint that is
//! connected to. It gives a key for each direction, and from then on everything is a [`frame`]: a header with a keyed
//! check, and behind that of a write its bytes.

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod key;

/// The version of everything in here, and of the blobs. Raised with every change.
pub(crate) const VERSION: u32 = 1;
/// What everything of this transport begins with.
pub(crate) const MAGIC: [u8; 4] = *b"MSCE";

/// Reads fields off the front of bytes; none where they end.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*value)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
