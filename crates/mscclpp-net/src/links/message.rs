use super::header::{BadHeader, Fields};

/// A message that the owner of an endpoint sends on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The endpoint is being closed.
    Goodbye,
    /// The owner refused what came over a data connection of the link, for the reason in the messages before.
    Refused,
    /// The network drops the packets of a data connection of the link.
    Silence,
    /// The owner saw a connection between the two endpoints break.
    Broken,
    /// A part of a reason, of `len` bytes, at least one; more parts may follow.
    Reason { piece: [u8; PIECE], len: u8 },
    /// The endpoint's owner has failed, for the reason in the messages before.
    Failed,
}

/// The most bytes of a reason in one message.
pub(super) const PIECE: usize = 24;
/// The most bytes of a reason. A peer that sends more is refused.
pub(super) const MAX_REASON: usize = 480;

/// Returns `message`, and before it the messages with the first [`MAX_REASON`] bytes of its reason.
pub(super) fn with_reason(reason: &str, message: Message) -> impl Iterator<Item = Message> {
    let pieces = reason.as_bytes()[..reason.len().min(MAX_REASON)].chunks(PIECE).map(|bytes| {
        let mut piece = [0; PIECE];
        piece[..bytes.len()].copy_from_slice(bytes);
        Message::Reason { piece, len: bytes.len() as u8 }
    });
    pieces.chain([message])
}

// The kinds below these are those of a transport's data, which has connections of its own.
const GOODBYE: u8 = 5;
const REFUSED: u8 = 6;
const SILENCE: u8 = 7;
const REASON: u8 = 8;
const FAILED: u8 = 9;
const BROKEN: u8 = 10;

impl From<Message> for Fields {
    fn from(message: Message) -> Self {
        match message {
            Message::Goodbye => Self { kind: GOODBYE, ..Self::default() },
            Message::Refused => Self { kind: REFUSED, ..Self::default() },
            Message::Silence => Self { kind: SILENCE, ..Self::default() },
            Message::Reason { piece, len } => {
                let mut numbers = [0; 3];
                for (number, bytes) in numbers.iter_mut().zip(piece.as_chunks().0) {
                    *number = u64::from_le_bytes(*bytes);
                }
                Self { kind: REASON, flag: len, numbers, ..Self::default() }
            }
            Message::Failed => Self { kind: FAILED, ..Self::default() },
            Message::Broken => Self { kind: BROKEN, ..Self::default() },
        }
    }
}

impl TryFrom<Fields> for Message {
    type Error = BadHeader;

    fn try_from(fields: Fields) -> Result<Self, BadHeader> {
        let Fields { kind, flag, numbers, .. } = fields;
        match (kind, flag) {
            (GOODBYE, 0) => Ok(Self::Goodbye),
            (REFUSED, 0) => Ok(Self::Refused),
            (SILENCE, 0) => Ok(Self::Silence),
            (REASON, len) if (1..=PIECE).contains(&usize::from(len)) => {
                let mut piece = [0; PIECE];
                for (bytes, number) in piece.as_chunks_mut().0.iter_mut().zip(numbers) {
                    *bytes = number.to_le_bytes();
                }
                Ok(Self::Reason { piece, len })
            }
            (FAILED, 0) => Ok(Self::Failed),
            (BROKEN, 0) => Ok(Self::Broken),
            _ => Err(BadHeader::Kind { kind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let piece = std::array::from_fn(|i| i as u8);
        let reason = Message::Reason { piece, len: 24 };
        let others = [Message::Goodbye, Message::Refused, Message::Silence, Message::Failed, Message::Broken];
        for message in others.into_iter().chain([reason]) {
            assert_eq!(Message::try_from(Fields::from(message)), Ok(message));
        }
    }

    #[test]
    fn a_reason_is_cut_into_pieces_and_bounded() {
        for (len, pieces) in [(0, 0), (1, 1), (24, 1), (25, 2), (480, 20), (10_000, 20)] {
            let said: Vec<_> = with_reason(&"x".repeat(len), Message::Failed).collect();
            assert_eq!((said.len(), said.last()), (pieces + 1, Some(&Message::Failed)), "{len} bytes");
        }
    }

    #[test]
    fn what_does_not_belong_on_a_link_is_refused() {
        for kind in [0, 1, 4, 11, 255] {
            let fields = Fields { kind, ..Fields::default() };
            assert_eq!(Message::try_from(fields), Err(BadHeader::Kind { kind }));
        }
        // A reason of no bytes is refused: a peer could repeat it for ever.
        for len in [0, 25, 255] {
            let fields = Fields { kind: REASON, flag: len, ..Fields::default() };
            assert_eq!(Message::try_from(fields), Err(BadHeader::Kind { kind: REASON }));
        }
        let flagged = Fields { kind: GOODBYE, flag: 1, ..Fields::default() };
        assert_eq!(Message::try_from(flagged), Err(BadHeader::Kind { kind: GOODBYE }));
    }
}
