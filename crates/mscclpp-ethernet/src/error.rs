use std::{fmt, net::SocketAddr};

use mscclpp_core::Transport;
pub(crate) use mscclpp_net::SystemCall;
use mscclpp_net::{Report, SystemError, env::BadVariable, links, wire::Malformed};

/// What can go wrong in this transport alone; callers get it inside [`mscclpp_core::Error::Transport`], or as the
/// variant of [`mscclpp_core::Error`] that says the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The peer cannot be connected to, or this machine cannot be.
    #[error(transparent)]
    Links(links::Error),
    /// What a peer sent for an endpoint or a region is not what this transport makes.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// An endpoint or a region.
        what: &'static str,
        /// What was wrong.
        problem: &'static str,
    },
    /// The peer refused what came from here, and gave up the connection.
    #[error("the peer at {address} refused what was sent: {reason}")]
    Refused {
        /// Where the peer listens.
        address: SocketAddr,
        /// What was wrong with it.
        reason: String,
    },
    /// What came from the peer was refused here, and the connection given up.
    #[error("what the peer at {address} sent was refused: {reason}")]
    Hostile {
        /// Where the peer listens.
        address: SocketAddr,
        /// What was wrong with it.
        reason: String,
    },
    /// A region or endpoint of another provider was passed in.
    #[error("{0} belongs to another transport provider")]
    Foreign(&'static str),
}

impl Error {
    /// Of what a peer sent for `what`.
    pub(crate) fn in_part_of(what: &'static str, error: links::Error) -> Self {
        match error {
            links::Error::Malformed(Malformed(problem)) => Self::Malformed { what, problem },
            other => Self::Links(other),
        }
    }
}

impl From<links::Error> for Error {
    fn from(error: links::Error) -> Self {
        Self::in_part_of("an endpoint", error)
    }
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Debug for Error {
    /// As [`mscclpp_net::Report`] shows it: what a `main` prints that returns it is the message with its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Report(self), f)
    }
}

impl From<Error> for mscclpp_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Links(links::Error::Gone { .. }) => {
                Self::PeerLost { peer: "a peer".to_owned(), reason: error.to_string() }
            }
            Error::Links(links::Error::Closed { .. }) => Self::PeerClosed { peer: "a peer".to_owned() },
            Error::Malformed { what, problem } => {
                Self::Malformed { what, problem: format!("in the transport's part, {problem}") }
            }
            Error::Links(links::Error::Environment(BadVariable { variable, value, allowed: expected })) => {
                Self::Environment { variable, value, expected }
            }
            other => Self::transport(Transport::ETHERNET, other),
        }
    }
}
