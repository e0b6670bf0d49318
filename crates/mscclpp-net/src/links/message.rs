use std::fmt;

use super::header::{BadHeader, Fields};

/// What the owner of an endpoint sends on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The endpoint is being closed.
    Goodbye,
    /// What came over a data connection of the link was refused.
    Refused(Complaint),
    /// The network drops the packets of a data connection of the link.
    Silence,
}

/// What a transport finds wrong with what a peer sent. The transport defines what the numbers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Complaint {
    /// A number for what is wrong.
    pub code: u32,
    /// Values that say more.
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

impl From<Message> for Fields {
    fn from(message: Message) -> Self {
        match message {
            Message::Goodbye => Self { kind: GOODBYE, ..Self::default() },
            Message::Refused(Complaint { code, values }) => {
                Self { kind: REFUSED, small: code, numbers: values, ..Self::default() }
            }
            Message::Silence => Self { kind: SILENCE, ..Self::default() },
        }
    }
}

impl TryFrom<Fields> for Message {
    type Error = BadHeader;

    fn try_from(fields: Fields) -> Result<Self, BadHeader> {
        let Fields { kind, flag, small, numbers } = fields;
        match (kind, flag) {
            (GOODBYE, 0) => Ok(Self::Goodbye),
            (REFUSED, 0) => Ok(Self::Refused(Complaint { code: small, values: numbers })),
            (SILENCE, 0) => Ok(Self::Silence),
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
        for message in [Message::Goodbye, Message::Refused(complaint), Message::Silence] {
            assert_eq!(Message::try_from(Fields::from(message)), Ok(message));
        }
    }

    #[test]
    fn what_does_not_belong_on_a_link_is_refused() {
        for kind in [0, 1, 4, 8, 9, 255] {
            let fields = Fields { kind, ..Fields::default() };
            assert_eq!(Message::try_from(fields), Err(BadHeader::Kind { kind }));
        }
        let flagged = Fields { kind: GOODBYE, flag: 1, ..Fields::default() };
        assert_eq!(Message::try_from(flagged), Err(BadHeader::Kind { kind: GOODBYE }));
    }
}
