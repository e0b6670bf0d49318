use std::net::SocketAddr;

use mscclpp_core::{Transport, provider::Foreign};
pub(crate) use mscclpp_net::SystemCall;
use mscclpp_net::{SystemError, links, wire::Malformed};

/// A failure that only this transport can have. Callers get it inside [`mscclpp_core::Error::Transport`], or as the
/// variant of [`mscclpp_core::Error`] that means the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed, the peer cannot be connected to, or no peer can connect to this node.
    #[error(transparent)]
    Links(links::Error),
    /// The bytes that a peer sent as an endpoint or a region were not made by this transport.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// The name of what is malformed: "an endpoint" or "a registered memory".
        what: &'static str,
        /// The reason why it is malformed.
        problem: &'static str,
    },
    /// The peer refused a message of this side, and closed the connection.
    #[error("the peer at {address} refused what was sent: {reason}")]
    Refused {
        /// The address on which the peer listens.
        address: SocketAddr,
        /// The peer's reason.
        reason: String,
    },
    /// This side refused a message of the peer, and closed the connection.
    #[error("what the peer at {address} sent was refused: {reason}")]
    Hostile {
        /// The address on which the peer listens.
        address: SocketAddr,
        /// The reason why the message was refused.
        reason: String,
    },
    /// A region or an endpoint made by another provider was passed in.
    #[error(transparent)]
    Foreign(#[from] Foreign),
}

impl Error {
    /// Converts an error that was found in `what`, which a peer sent.
    pub(crate) fn in_part_of(what: &'static str, error: links::Error) -> Self {
        match error {
            links::Error::Malformed(Malformed(problem)) => Self::Malformed { what, problem },
            other => Self::Links(other),
        }
    }
}

impl From<SystemError> for Error {
    fn from(error: SystemError) -> Self {
        Self::Links(error.into())
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
