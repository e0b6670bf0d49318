//! What a peer is told when its queue, or what came over it, is refused.

use std::fmt;

use mscclpp_net::links;

/// What is wrong with a queue or with what came over it; the peer is told this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// This end could not be made. `errno` is the system's error, or 0.
    NoQueue { errno: u64 },
    /// What the peer said about its end makes no sense.
    Offer,
    /// A signal for a region that is not registered.
    Region { region: u64 },
    /// A signal for a word that is outside its region or not aligned.
    Place { region: u64, offset: u64 },
    /// A signal for a word that only a device reaches.
    Device { region: u64 },
    /// A message that makes no sense, or a number before the first selection.
    Message,
}

impl From<Complaint> for links::Complaint {
    fn from(complaint: Complaint) -> Self {
        let (code, values) = match complaint {
            Complaint::NoQueue { errno } => (1, [errno, 0, 0]),
            Complaint::Offer => (2, [0; 3]),
            Complaint::Region { region } => (3, [region, 0, 0]),
            Complaint::Place { region, offset } => (4, [region, offset, 0]),
            Complaint::Device { region } => (5, [region, 0, 0]),
            Complaint::Message => (6, [0; 3]),
        };
        Self { code, values }
    }
}

impl From<links::Complaint> for Complaint {
    fn from(links::Complaint { code, values: [first, second, _] }: links::Complaint) -> Self {
        match code {
            1 => Self::NoQueue { errno: first },
            3 => Self::Region { region: first },
            4 => Self::Place { region: first, offset: second },
            5 => Self::Device { region: first },
            6 => Self::Message,
            _ => Self::Offer,
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoQueue { errno: 0 } => write!(f, "it cannot make its end of a queue; its log says why"),
            Self::NoQueue { errno } => {
                let why = std::io::Error::from_raw_os_error(errno as i32);
                write!(f, "it cannot make its end of a queue: {why}; its log says more")
            }
            Self::Offer => write!(
                f,
                "it cannot make sense of this side's end of a queue; use one version of the library"
            ),
            Self::Region { region } => {
                write!(f, "a signal names region {region:#x}, which is not registered there, or was dropped")
            }
            Self::Place { region, offset } => {
                write!(
                    f,
                    "a signal names offset {offset} of region {region:#x}, which has no aligned word there"
                )
            }
            Self::Device { region } => write!(
                f,
                "a signal names region {region:#x}, which is in a GPU's memory, where its process cannot store; use one \
                 version of the library"
            ),
            Self::Message => write!(f, "a message makes no sense there; use one version of the library"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_survive_their_journey() {
        for complaint in [
            Complaint::NoQueue { errno: 12 },
            Complaint::Offer,
            Complaint::Region { region: 5 },
            Complaint::Place { region: 5, offset: 6 },
            Complaint::Device { region: 7 },
            Complaint::Message,
        ] {
            assert_eq!(Complaint::from(links::Complaint::from(complaint)), complaint);
        }
    }
}
