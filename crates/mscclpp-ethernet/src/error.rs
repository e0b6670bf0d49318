use std::net::SocketAddr;

use mscclpp_core::{Transport, provider::Foreign};
pub(crate) use mscclpp_net::SystemCall;
use mscclpp_net::{SystemError, links, wire::Malformed};

/// What can go wrong in this transport alone. Callers get it inside [`mscclpp_core::Error::Transport`], or as the
/// variant of [`mscclpp_core::Error`] that means the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The peer cannot be connected to, or no peer can connect to this machine.
    #[error(transparent)]
    Links(links::Error),
    /// What a peer sent as an endpoint or a region was not made by this transport.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// "an endpoint" or "a region".
        what: &'static str,
        /// What was wrong.
        problem: &'static str,
    },
    /// The peer refused what this side sent, and gave up the connection.
    #[error("the peer at {address} refused what was sent: {reason}")]
    Refused {
        /// Where the peer listens.
        address: SocketAddr,
        /// What was wrong with it.
        reason: String,
    },
    /// This side refused what the peer sent, and gave up the connection.
    #[error("what the peer at {address} sent was refused: {reason}")]
    Hostile {
        /// Where the peer listens.
        address: SocketAddr,
        /// What was wrong with it.
        reason: String,
    },
    /// A region or an endpoint made by another provider was passed in.
    #[error(transparent)]
    Foreign(#[from] Foreign),
}

impl Error {
    /// An error in what a peer sent as `what`.
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

mscclpp_net::debug_as_report!(Error);

impl From<Error> for mscclpp_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Links(links::Error::Gone { .. }) => {
                Self::PeerLost { peer: "a peer".to_owned(), reason: error.to_string() }
            }
            Error::Links(links::Error::Closed { .. }) => Self::PeerClosed { peer: "a peer".to_owned() },
            Error::Malformed { what, problem } => Self::malformed_part(what, problem),
            Error::Links(links::Error::Environment(error)) => error.into(),
            other => Self::transport(Transport::ETHERNET, other),
        }
    }
}
