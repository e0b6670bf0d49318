//! Frames: everything that is said on a connection after its handshake.
//!
//! ```text
//! offset  size  field
//!      0     1  kind
//!      1     1  1 if the bytes have a checksum
//!      2     2  zero
//!      4     4  CRC-32 of the bytes, or the number of a fault, or zero
//!      8     8  sequence number: 0 for the first frame of this direction, then one more each
//!     16    24  three numbers, by kind
//!     40     8  seal: SipHash-2-4 of the 40 bytes before, under the key of this direction
//! ```
//! Numbers are little endian. Behind the header of a write come its bytes. A frame that was changed, made up, repeated,
//! left out or taken from another connection does not get past [`Inbound::open`].

use std::sync::atomic::{AtomicU64, Ordering};

use super::seal::Seal;

/// Length of a header.
pub(crate) const HEADER: usize = 48;
const SEALED: usize = 40;

/// A header as it travels.
pub(crate) type Header = [u8; HEADER];

/// What is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// `len` bytes follow, for `offset` of a region.
    Write { region: u64, offset: u64, len: u64, checksum: Option<u32> },
    /// 8 bytes for `offset` of a region, visible only after everything before.
    Update { region: u64, offset: u64, value: u64 },
    /// A question: is everything before complete?
    Flush { ticket: u64 },
    /// Its answer.
    Complete { ticket: u64 },
    /// The endpoint that this link leads to is being closed.
    Goodbye,
    /// The link is of no more use.
    Fault(Fault),
    /// The network swallows a connection that belongs to this link.
    Silence,
}

/// What one end finds wrong with what the other sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a frame does not have the seal of this connection: it was changed on its way, or made up")]
    Seal,
    #[error("frame {came} came where frame {due} was due: one was repeated, lost or moved")]
    Sequence { due: u64, came: u64 },
    #[error("a frame of kind {kind} is not of this protocol, or out of place")]
    Kind { kind: u8 },
    #[error("region {region:#018x} is not registered, or not any more")]
    Region { region: u64 },
    #[error("{len} bytes at offset {offset} are not inside region {region:#018x}")]
    Bounds { region: u64, offset: u64, len: u64 },
    #[error("an update at offset {offset} of region {region:#018x} is not 8-byte aligned in memory")]
    Unaligned { region: u64, offset: u64 },
    #[error(
        "bytes for offset {offset} of region {region:#018x} do not have the checksum they were sent with"
    )]
    Checksum { region: u64, offset: u64 },
    #[error("the device of region {region:#018x} failed; the peer's log has more")]
    Device { region: u64 },
}

impl Fault {
    /// Its number, and those in it.
    fn fields(self) -> (u32, [u64; 3]) {
        match self {
            Self::Seal => (1, [0; 3]),
            Self::Sequence { due, came } => (2, [due, came, 0]),
            Self::Kind { kind } => (3, [u64::from(kind), 0, 0]),
            Self::Region { region } => (4, [region, 0, 0]),
            Self::Bounds { region, offset, len } => (5, [region, offset, len]),
            Self::Unaligned { region, offset } => (6, [region, offset, 0]),
            Self::Checksum { region, offset } => (7, [region, offset, 0]),
            Self::Device { region } => (8, [region, 0, 0]),
        }
    }

    fn of(number: u32, [a, b, c]: [u64; 3]) -> Option<Self> {
        Some(match number {
            1 => Self::Seal,
            2 => Self::Sequence { due: a, came: b },
            3 => Self::Kind { kind: a.try_into().ok()? },
            4 => Self::Region { region: a },
            5 => Self::Bounds { region: a, offset: b, len: c },
            6 => Self::Unaligned { region: a, offset: b },
            7 => Self::Checksum { region: a, offset: b },
            8 => Self::Device { region: a },
            _ => return None,
        })
    }
}

impl Frame {
    fn encode(self, sequence: u64, seal: &Seal) -> Header {
        let (kind, numbers, extra) = match self {
            Self::Write { region, offset, len, checksum } => {
                (1, [region, offset, len], checksum.unwrap_or(0))
            }
            Self::Update { region, offset, value } => (2, [region, offset, value], 0),
            Self::Flush { ticket } => (3, [ticket, 0, 0], 0),
            Self::Complete { ticket } => (4, [ticket, 0, 0], 0),
            Self::Goodbye => (5, [0; 3], 0),
            Self::Fault(fault) => {
                let (number, numbers) = fault.fields();
                (6, numbers, number)
            }
            Self::Silence => (7, [0; 3], 0),
        };
        let has_checksum = matches!(self, Self::Write { checksum: Some(_), .. });
        let mut out = [0; HEADER];
        out[0] = kind;
        out[1] = u8::from(has_checksum);
        out[4..8].copy_from_slice(&extra.to_le_bytes());
        out[8..16].copy_from_slice(&sequence.to_le_bytes());
        for (field, number) in out[16..].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let tag = seal.tag(&out[..SEALED]);
        out[SEALED..].copy_from_slice(&tag.to_le_bytes());
        out
    }

    /// The fields of a header whose seal is right.
    fn decode(header: &Header) -> Result<(u64, Self), Fault> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let [a, b, c] = [number(16), number(24), number(32)];
        let extra = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let unknown = Fault::Kind { kind: header[0] };
        let frame = match (header[0], header[1]) {
            (1, 0) => Self::Write { region: a, offset: b, len: c, checksum: None },
            (1, 1) => Self::Write { region: a, offset: b, len: c, checksum: Some(extra) },
            (2, 0) => Self::Update { region: a, offset: b, value: c },
            (3, 0) => Self::Flush { ticket: a },
            (4, 0) => Self::Complete { ticket: a },
            (5, 0) => Self::Goodbye,
            (6, 0) => Self::Fault(Fault::of(extra, [a, b, c]).ok_or(unknown)?),
            (7, 0) => Self::Silence,
            _ => return Err(unknown),
        };
        Ok((number(8), frame))
    }
}

/// The frames of one direction, as their sender counts and seals them.
pub(crate) struct Outbound {
    seal: Seal,
    // Relaxed: at any time one thread seals, and hands over to the next by other means.
    next: AtomicU64,
}

impl Outbound {
    pub(crate) fn new(seal: Seal) -> Self {
        Self { seal, next: AtomicU64::new(0) }
    }

    /// The header of the next frame. Whoever calls this must see to it that frames are sent in the order of the calls.
    pub(crate) fn seal(&self, frame: Frame) -> Header {
        frame.encode(self.next.fetch_add(1, Ordering::Relaxed), &self.seal)
    }
}

/// The frames of one direction, as their receiver checks them.
pub(crate) struct Inbound {
    seal: Seal,
    next: u64,
}

impl Inbound {
    pub(crate) fn new(seal: Seal) -> Self {
        Self { seal, next: 0 }
    }

    /// What a header says.
    pub(crate) fn open(&mut self, header: &Header) -> Result<Frame, Fault> {
        let (sealed, tag) = header.split_at(SEALED);
        // One comparison of 8 bytes: how long it takes tells nothing.
        if tag != self.seal.tag(sealed).to_le_bytes() {
            return Err(Fault::Seal);
        }
        let (came, frame) = Frame::decode(header)?;
        if came != self.next {
            return Err(Fault::Sequence { due: self.next, came });
        }
        self.next += 1;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        Seal::from_bytes(&[7; 16])
    }

    const FRAMES: [Frame; 9] = [
        Frame::Write { region: 1, offset: 2, len: 3, checksum: None },
        Frame::Write { region: u64::MAX, offset: u64::MAX, len: u64::MAX, checksum: Some(u32::MAX) },
        Frame::Update { region: 4, offset: 8, value: u64::MAX },
        Frame::Flush { ticket: 9 },
        Frame::Complete { ticket: 9 },
        Frame::Goodbye,
        Frame::Fault(Fault::Sequence { due: 3, came: 4 }),
        Frame::Fault(Fault::Region { region: 5 }),
        Frame::Silence,
    ];

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let (outbound, mut inbound) = (Outbound::new(seal()), Inbound::new(seal()));
        for frame in FRAMES {
            assert_eq!(inbound.open(&outbound.seal(frame)), Ok(frame));
        }
    }

    #[test]
    fn every_fault_can_be_told() {
        for fault in [
            Fault::Seal,
            Fault::Sequence { due: 1, came: 2 },
            Fault::Kind { kind: 99 },
            Fault::Region { region: 1 },
            Fault::Bounds { region: 1, offset: 2, len: 3 },
            Fault::Unaligned { region: 1, offset: 2 },
            Fault::Checksum { region: 1, offset: 2 },
            Fault::Device { region: 1 },
        ] {
            let (number, fields) = fault.fields();
            assert_eq!(Fault::of(number, fields), Some(fault));
        }
        for number in [0, 9, u32::MAX] {
            assert_eq!(Fault::of(number, [0; 3]), None);
        }
    }

    #[test]
    fn a_changed_bit_breaks_the_seal() {
        for frame in FRAMES {
            let header = Outbound::new(seal()).seal(frame);
            for bit in 0..8 * HEADER {
                let mut changed = header;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Inbound::new(seal()).open(&changed), Err(Fault::Seal), "bit {bit} of {frame:?}");
            }
        }
    }

    #[test]
    fn repeated_lost_and_moved_frames_are_seen() {
        let outbound = Outbound::new(seal());
        let [first, second, third] = [(); 3].map(|()| outbound.seal(Frame::Flush { ticket: 1 }));
        let mut inbound = Inbound::new(seal());
        inbound.open(&first).unwrap();
        assert_eq!(inbound.open(&first), Err(Fault::Sequence { due: 1, came: 0 }));
        assert_eq!(inbound.open(&third), Err(Fault::Sequence { due: 1, came: 2 }));
        inbound.open(&second).unwrap();
    }

    #[test]
    fn frames_of_another_connection_are_worth_nothing() {
        let header = Outbound::new(Seal::from_bytes(&[8; 16])).seal(Frame::Goodbye);
        assert_eq!(Inbound::new(seal()).open(&header), Err(Fault::Seal));
    }

    #[test]
    fn sealed_nonsense_is_refused() {
        for (at, byte) in [(0, 0), (0, 8), (0, 255), (1, 2)] {
            let mut header = Outbound::new(seal()).seal(FRAMES[0]);
            header[at] = byte;
            let tag = seal().tag(&header[..SEALED]);
            header[SEALED..].copy_from_slice(&tag.to_le_bytes());
            assert!(matches!(Inbound::new(seal()).open(&header), Err(Fault::Kind { .. })));
        }
    }
}
