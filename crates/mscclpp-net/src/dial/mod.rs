//! Finding the address at which a peer answers, among several.
//!
//! An address of a peer may lead nowhere from here, or to somebody else. There are two ways to find the right one:
//! [`Search`] tries one address at a time and keeps at it until a deadline, for who runs an event loop;
//! [`race()`] tries them side by side and blocks, for who needs a connection now.

mod race;
mod search;

use std::{fmt, io, net::SocketAddr};

pub use race::{Handshake, Lost, Outcome, Unreached, race};
pub use search::Search;

/// An address that was tried, and how that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The address.
    pub address: SocketAddr,
    /// How the last attempt on it failed.
    pub outcome: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.outcome)
    }
}

/// How an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// Nobody listens there.
    Refused,
    /// Somebody answers who is not the peer, or so it seems: anybody can say that.
    Unproven(String),
    /// Anything else.
    Other(String),
}

impl From<&io::Error> for Failed {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => write!(f, "nobody listens there"),
            Self::Unproven(text) | Self::Other(text) => write!(f, "{text}"),
        }
    }
}
