//! The complaints that a peer gets when its queue, or data that came over it, is refused.

use std::io;

use mscclpp_net::links;

/// A fault of a queue, or of data that came over it. It is sent to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Complaint {
    /// This end could not be made. `errno` is the system's error, or 0.
    #[error("it cannot make its end of a queue{}", why(*errno))]
    NoQueue { errno: u64 },
    /// The peer's description of its end is malformed.
    #[error("it cannot make sense of this side's end of a queue; use one version of the library")]
    Offer,
    /// A signal names a region that does not exist.
    #[error("a signal names region {region:#x}, which is not registered there, or was dropped")]
    Region { region: u64 },
    /// A signal names a word that does not exist.
    #[error("a signal names offset {offset} of region {region:#x}, which has no aligned word there")]
    Place { region: u64, offset: u64 },
    /// A signal names a word that only a device reaches.
    #[error(
        "a signal names region {region:#x}, which is in a GPU's memory, where its process cannot store; use one version \
         of the library"
    )]
    Device { region: u64 },
    /// A message is malformed, or a number came before the first selection.
    #[error("a message makes no sense there; use one version of the library")]
    Message,
}

fn why(errno: u64) -> String {
    match errno {
        0 => "; its log says why".to_owned(),
        errno => format!(": {}; its log says more", io::Error::from_raw_os_error(errno as i32)),
    }
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
