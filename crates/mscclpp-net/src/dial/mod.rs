//! Finding the address at which a peer answers, among several.
//!
//! Some of a peer's addresses may lead nowhere from here, or to another process. [`Search`] tries one address at a time until
//! a deadline, for callers that run an event loop.

mod search;

use std::{fmt, io, net::SocketAddr};

pub use search::Search;

/// An address that was tried, and how the attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The address.
    pub address: SocketAddr,
    /// How the last attempt at this address failed.
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
    /// No process listens there.
    Refused,
    /// The process that answers has not proved to be the peer. Its answer cannot be trusted: anybody could send it.
    Unproven(String),
    /// A process listens there, and ended the connection before it had answered.
    Ended(String),
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
            Self::Unproven(text) | Self::Ended(text) | Self::Other(text) => write!(f, "{text}"),
        }
    }
}
