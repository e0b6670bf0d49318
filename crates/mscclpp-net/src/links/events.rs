use std::{fmt, net::SocketAddr};

use crate::SystemError;

/// Receives the end of a link.
///
/// The method is called on the thread of the links, one call at a time. It must not block, because all other links
/// wait meanwhile.
pub trait LinkEvents: Send + Sync {
    /// Called once the link has ended. No call follows.
    fn ended(&self, end: LinkEnd);
}

/// The way in which a link ended.
#[derive(Debug)]
pub enum LinkEnd {
    /// The peer closed its endpoint.
    Goodbye,
    /// The peer is gone. The text says how that was noticed, and at which address the peer was.
    Lost(String),
    /// The peer has said that it failed. The bytes are its reason, at most 503 of them, and should be UTF-8.
    Failed(Vec<u8>),
    /// The peer refused what this side sent.
    Refused {
        /// The address at which the peer listens.
        address: SocketAddr,
        /// The peer's reason, bounded like that of [`LinkEnd::Failed`].
        reason: Vec<u8>,
    },
    /// This side refused what the peer sent.
    Hostile {
        /// The address at which the peer listens.
        address: SocketAddr,
        /// The fault in what the peer sent.
        reason: String,
    },
    /// The system cannot watch one more link.
    System(SystemError),
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Goodbye => write!(f, "the peer closed its endpoint"),
            Self::Lost(reason) => write!(f, "the peer is lost: {reason}"),
            Self::Failed(reason) => {
                write!(f, "the peer says that it failed: {}", String::from_utf8_lossy(reason).escape_debug())
            }
            Self::Refused { address, reason } => {
                let reason = String::from_utf8_lossy(reason);
                write!(f, "the peer at {address} refused what was sent: {}", reason.escape_debug())
            }
            Self::Hostile { address, reason } => {
                write!(f, "what the peer at {address} sent was refused: {reason}")
            }
            Self::System(error) => write!(f, "{error}: {}", error.source),
        }
    }
}
