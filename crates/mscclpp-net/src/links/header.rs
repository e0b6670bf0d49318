//! Headers with a keyed check. After the handshake, every message begins with one.
//!
//! ```text
//! offset  size  field
//!      0     1  kind
//!      1     1  flag
//!      2     2  zero
//!      4     4  a small number
//!      8     8  sequence number: 0 for the first header of this direction, then one more each
//!     16    24  three numbers
//!     40     8  seal: SipHash-2-4 of the 40 bytes before, under the key of this direction
//! ```
//! Numbers are little-endian. Their meaning depends on the kind, which the transport defines. [`Inbound::open`]
//! refuses a header that was changed, forged, repeated, left out or taken from another connection.

use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher24;

/// The length of a header in bytes.
pub const HEADER: usize = 48;
const SEALED: usize = 40;

/// A header's bytes, as they are sent.
pub type Header = [u8; HEADER];

/// The key that seals the headers of one direction of one connection.
pub type SealKey = [u8; 16];

/// The fields of a header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fields {
    /// The kind, which says what the other fields mean.
    pub kind: u8,
    /// A byte whose meaning depends on the kind.
    pub flag: u8,
    /// A number whose meaning depends on the kind.
    pub small: u32,
    /// Numbers whose meaning depends on the kind.
    pub numbers: [u64; 3],
}

/// The fault of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// The seal is wrong.
    #[error("a frame does not have the seal of this connection: it was changed on its way, or made up")]
    Seal,
    /// The sequence number is wrong.
    #[error("frame {came} came where frame {due} was due: one was repeated, lost or moved")]
    Sequence {
        /// The sequence number that was due.
        due: u64,
        /// The sequence number that came.
        came: u64,
    },
    /// The kind is unknown, or its fields are wrong.
    #[error("a frame of kind {kind} is not of this protocol, or out of place")]
    Kind {
        /// The header's kind.
        kind: u8,
    },
}

/// Counts and seals the headers of one direction, at their sender.
pub struct Outbound {
    seal: SipHasher24,
    // Relaxed: one thread at a time seals, and the hand-over to the next thread is synchronised by other means.
    next: AtomicU64,
}

impl Outbound {
    /// Makes the sender's side of a direction on which no header has been sent yet.
    #[must_use]
    pub fn new(key: &SealKey) -> Self {
        Self { seal: SipHasher24::new_with_key(key), next: AtomicU64::new(0) }
    }

    /// Seals the next header. The caller must send the headers in the order of these calls.
    #[inline]
    pub fn seal(&self, fields: impl Into<Fields>) -> Header {
        let Fields { kind, flag, small, numbers } = fields.into();
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        let mut out = [0; HEADER];
        out[0] = kind;
        out[1] = flag;
        out[4..8].copy_from_slice(&small.to_le_bytes());
        out[8..16].copy_from_slice(&sequence.to_le_bytes());
        for (field, number) in out[16..].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let tag = self.seal.hash(&out[..SEALED]);
        out[SEALED..].copy_from_slice(&tag.to_le_bytes());
        out
    }
}

/// Checks the headers of one direction, at their receiver.
pub struct Inbound {
    seal: SipHasher24,
    next: u64,
}

impl Inbound {
    /// Makes the receiver's side of a direction on which no header has come yet.
    #[must_use]
    pub fn new(key: &SealKey) -> Self {
        Self { seal: SipHasher24::new_with_key(key), next: 0 }
    }

    /// Checks a header and returns its fields.
    ///
    /// # Errors
    /// [`BadHeader::Seal`] or [`BadHeader::Sequence`], checked in this order.
    #[inline]
    pub fn open(&mut self, header: &Header) -> Result<Fields, BadHeader> {
        let (sealed, tag) = header.split_at(SEALED);
        // One comparison of 8 bytes takes the same time for every wrong seal.
        if tag != self.seal.hash(sealed).to_le_bytes() {
            return Err(BadHeader::Seal);
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let came = number(8);
        if came != self.next {
            return Err(BadHeader::Sequence { due: self.next, came });
        }
        self.next += 1;
        Ok(Fields {
            kind: header[0],
            flag: header[1],
            small: u32::from_le_bytes([header[4], header[5], header[6], header[7]]),
            numbers: [number(16), number(24), number(32)],
        })
    }
}
