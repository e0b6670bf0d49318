use std::{fmt, net::SocketAddr};

use crate::SystemError;

use super::Complaint;

/// Hears what becomes of a link.
///
/// Called on the thread of the links, one call at a time. The calls must not block, because all other links wait
/// meanwhile.
pub trait LinkEvents: Send + Sync {
    /// The link has ended. No call follows.
    fn ended(&self, end: LinkEnd);
}

/// How a link ends.
#[derive(Debug)]
pub enum LinkEnd {
    /// The peer closed its endpoint.
    Goodbye,
    /// The peer is gone. The text says how that was noticed, and where the peer was.
    Lost(String),
    /// The peer has said that it failed, and why, in bytes that should be UTF-8. No more than 503 of them.
    Failed(Vec<u8>),
    /// The peer refused what this side sent.
    Refused {
        /// Where the peer listens.
        address: SocketAddr,
        /// What was wrong with it.
        complaint: Complaint,
    },
    /// This side refused what the peer sent.
    Hostile {
        /// Where the peer listens.
        address: SocketAddr,
        /// What was wrong with it.
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
            Self::Refused { address, complaint } => {
                write!(f, "the peer at {address} refused what was sent: {complaint}")
            }
            Self::Hostile { address, reason } => {
                write!(f, "what the peer at {address} sent was refused: {reason}")
            }
            Self::System(error) => write!(f, "{error}: {}", error.source),
        }
    }
}
