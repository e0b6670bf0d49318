//! Frames: the messages on a connection that carries data.
//!
//! ```text
//! kind          flag                         small number     three numbers
//! 1  write      1 if bytes have a checksum   their CRC-32     region, offset, length; the bytes follow
//! 2  update     0                            0                region, offset, value
//! 3  flush      0                            0                ticket
//! 4  complete   0                            0                ticket
//! 5  goodbye    0                            0                nothing; no frame follows
//! ```
//! Each frame is a header that [`mscclpp_net::links::header`] seals and numbers. The text of a fault is sent
//! over the link.

use mscclpp_net::links::header::{BadHeader, Fields, Header, Inbound};

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A write: `len` bytes follow, for `offset` of a region.
    Write { region: u64, offset: u64, len: u64, checksum: Option<u32> },
    /// An update: 8 bytes for `offset` of a region, which become visible only after everything that was sent before.
    Update { region: u64, offset: u64, value: u64 },
    /// A request for an answer once everything that was sent before is in place.
    Flush { ticket: u64 },
    /// The answer to a flush.
    Complete { ticket: u64 },
    /// The end: the queue was dropped, and everything that it was given has been sent. An end without this is a failure.
    Goodbye,
}

/// A fault that one end finds in a message of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Header(#[from] BadHeader),
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

impl From<Frame> for Fields {
    #[inline]
    fn from(frame: Frame) -> Self {
        let (kind, numbers, checksum) = match frame {
            Frame::Write { region, offset, len, checksum } => (1, [region, offset, len], checksum),
            Frame::Update { region, offset, value } => (2, [region, offset, value], None),
            Frame::Flush { ticket } => (3, [ticket, 0, 0], None),
            Frame::Complete { ticket } => (4, [ticket, 0, 0], None),
            Frame::Goodbye => (5, [0; 3], None),
        };
        Self { kind, flag: u8::from(checksum.is_some()), small: checksum.unwrap_or(0), numbers }
    }
}

impl TryFrom<Fields> for Frame {
    type Error = BadHeader;

    #[inline]
    fn try_from(fields: Fields) -> Result<Self, BadHeader> {
        let Fields { kind, flag, small, numbers: [a, b, c] } = fields;
        Ok(match (kind, flag) {
            (1, 0) => Self::Write { region: a, offset: b, len: c, checksum: None },
            (1, 1) => Self::Write { region: a, offset: b, len: c, checksum: Some(small) },
            (2, 0) => Self::Update { region: a, offset: b, value: c },
            (3, 0) => Self::Flush { ticket: a },
            (4, 0) => Self::Complete { ticket: a },
            (5, 0) => Self::Goodbye,
            _ => return Err(BadHeader::Kind { kind }),
        })
    }
}

impl Frame {
    /// Reads the next header of a connection.
    #[inline]
    pub(crate) fn open(inbound: &mut Inbound, header: &Header) -> Result<Self, Fault> {
        Ok(inbound.open(header)?.try_into()?)
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_net::links::header::{Outbound, SealKey};

    use super::*;

    const KEY: SealKey = [7; 16];
    const FRAMES: [Frame; 6] = [
        Frame::Write { region: 1, offset: 2, len: 3, checksum: None },
        Frame::Write { region: u64::MAX, offset: u64::MAX, len: u64::MAX, checksum: Some(u32::MAX) },
        Frame::Update { region: 4, offset: 8, value: u64::MAX },
        Frame::Flush { ticket: 9 },
        Frame::Complete { ticket: 9 },
        Frame::Goodbye,
    ];

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let (outbound, mut inbound) = (Outbound::new(&KEY), Inbound::new(&KEY));
        for frame in FRAMES {
            assert_eq!(Frame::open(&mut inbound, &outbound.seal(frame)), Ok(frame));
        }
    }

    #[test]
    fn a_frame_that_is_not_as_it_should_be_is_a_fault() {
        let changed = |change: fn(&mut Header)| {
            let mut header = Outbound::new(&KEY).seal(FRAMES[0]);
            change(&mut header);
            Frame::open(&mut Inbound::new(&KEY), &header)
        };
        assert_eq!(changed(|_| ()), Ok(FRAMES[0]));
        assert_eq!(changed(|header| header[9] ^= 1), Err(BadHeader::Seal.into()));
        let outbound = Outbound::new(&KEY);
        let _left_out = outbound.seal(FRAMES[0]);
        let refused = Frame::open(&mut Inbound::new(&KEY), &outbound.seal(FRAMES[0]));
        assert_eq!(refused, Err(BadHeader::Sequence { due: 0, came: 1 }.into()));
    }

    #[test]
    fn sealed_nonsense_is_refused() {
        // Kinds 6 to 10 are those of links.
        for (kind, flag) in
            [(0, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (255, 0), (1, 2), (2, 1), (5, 1)]
        {
            let header = Outbound::new(&KEY).seal(Fields { kind, flag, ..Fields::default() });
            let refused = Frame::open(&mut Inbound::new(&KEY), &header);
            assert_eq!(refused, Err(BadHeader::Kind { kind }.into()));
        }
    }
}
