use std::fmt;

use super::header::{BadHeader, Fields};

/// What the owner of an endpoint says on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The endpoint is being closed.
    Goodbye,
    /// What came over a connection of the link was refused.
    Refused(Complaint),
    /// The network swallows a connection that belongs to the link.
    Silence,
    /// A word of the transport's.
    Word(u8),
}

/// What a transport finds wrong with what a peer sent: numbers whose meaning is the transport's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Complaint {
    /// What is wrong.
    pub code: u32,
    /// With which values.
    pub values: [u64; 3],
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.values;
        write!(f, "complaint {} with values {a}, {b} and {c}", self.code)
    }
}

// Kinds below are those of a transport's data, which has connections of its own.
const GOODBYE: u8 = 5;
const REFUSED: u8 = 6;
const SILENCE: u8 = 7;
const WORD: u8 = 8;

impl From<Message> for Fields {
    fn from(message: Message) -> Self {
        match message {
            Message::Goodbye => Self { kind: GOODBYE, ..Self::default() },
            Message::Refused(Complaint { code, values }) => {
                Self { kind: REFUSED, small: code, numbers: values, ..Self::default() }
            }
            Message::Silence => Self { kind: SILENCE, ..Self::default() },
            Message::Word(word) => Self { kind: WORD, small: word.into(), ..Self::default() },
        }
    }
}

impl TryFrom<Fields> for Message {
    type Error = BadHeader;

    fn try_from(fields: Fields) -> Result<Self, BadHeader> {
        let Fields { kind, flag, small, numbers } = fields;
        match (kind, flag, u8::try_from(small)) {
            (GOODBYE, 0, _) => Ok(Self::Goodbye),
            (REFUSED, 0, _) => Ok(Self::Refused(Complaint { code: small, values: numbers })),
            (SILENCE, 0, _) => Ok(Self::Silence),
            (WORD, 0, Ok(word)) => Ok(Self::Word(word)),
            _ => Err(BadHeader::Kind { kind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let complaint = Complaint { code: 9, values: [1, 2, u64::MAX] };
        for message in [Message::Goodbye, Message::Refused(complaint), Message::Silence, Message::Word(255)] {
            assert_eq!(Message::try_from(Fields::from(message)), Ok(message));
        }
    }

    #[test]
    fn what_does_not_belong_on_a_link_is_refused() {
        for kind in [0, 1, 4, 9, 255] {
            let fields = Fields { kind, ..Fields::default() };
            assert_eq!(Message::try_from(fields), Err(BadHeader::Kind { kind }));
        }
        let long = Fields { kind: WORD, small: 256, ..Fields::default() };
        assert_eq!(Message::try_from(long), Err(BadHeader::Kind { kind: WORD }));
        let flagged = Fields { kind: GOODBYE, flag: 1, ..Fields::default() };
        assert_eq!(Message::try_from(flagged), Err(BadHeader::Kind { kind: GOODBYE }));
    }
}
