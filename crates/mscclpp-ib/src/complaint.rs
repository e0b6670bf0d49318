//! The complaints that a peer gets when its queue, or data that came over it, is refused.

use std::io;

/// A fault of a queue, or of data that came over it. Its text is sent to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Complaint {
    /// This end could not be made. `errno` is the system's error, or 0.
    #[error("it cannot make its end of a queue{}", why(*errno))]
    NoQueue { errno: i32 },
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

fn why(errno: i32) -> String {
    match errno {
        0 => "; its log says why".to_owned(),
        errno => format!(": {}; its log says more", io::Error::from_raw_os_error(errno)),
    }
}
