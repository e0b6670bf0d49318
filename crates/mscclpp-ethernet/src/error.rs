use std::{fmt, net::SocketAddr, time::Duration};

use mscclpp_core::Transport;
pub(crate) use mscclpp_net::SystemCall;
use mscclpp_net::{Report, SystemError, dial::Attempt, env::BadVariable, interface::NoSuchInterface};

use crate::protocol::VERSION;

/// What can go wrong in this transport alone; callers get it inside [`mscclpp_core::Error::Transport`], or as the
/// variant of [`mscclpp_core::Error`] that says the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// No interface of that name has a usable address.
    #[error(transparent)]
    NoSuchInterface(#[from] NoSuchInterface),
    /// This machine has no address that a peer could connect to.
    #[error("no network interface has a usable address (MSCCLPP_SOCKET_FAMILY may exclude all there are)")]
    NoAddress,
    /// What a peer sent for an endpoint or a region is not what this transport makes.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// An endpoint or a region.
        what: &'static str,
        /// What was wrong.
        problem: &'static str,
    },
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer speaks version {theirs} of the Ethernet protocol, this side version {VERSION}; use one version of the library everywhere"
    )]
    Version {
        /// The peer's.
        theirs: u32,
    },
    /// Nobody listens at any of the peer's addresses any more.
    #[error("the peer's process is gone: nobody listens at {}", join(.addresses, ", "))]
    Gone {
        /// Where it listened.
        addresses: Vec<SocketAddr>,
    },
    /// The peer's process is there, its endpoint is not.
    #[error("the peer at {address} has closed its endpoint")]
    Closed {
        /// Where the peer listens.
        address: SocketAddr,
    },
    /// No address of the peer led to it.
    #[error("the peer could not be reached at any of its addresses within {after:?}: {}", join(.attempts, "; "))]
    Unreachable {
        /// How long was tried.
        after: Duration,
        /// Each address, and what happened there.
        attempts: Vec<Attempt>,
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
    /// An environment variable with a malformed value.
    #[error(transparent)]
    Environment(#[from] BadVariable),
}

fn join(items: &[impl ToString], separator: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
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
            Error::Gone { .. } => Self::PeerLost { peer: "a peer".to_owned(), reason: error.to_string() },
            Error::Closed { .. } => Self::PeerClosed { peer: "a peer".to_owned() },
            Error::Malformed { what, problem } => {
                Self::Malformed { what, problem: format!("in the transport's part, {problem}") }
            }
            Error::Environment(BadVariable { variable, value, allowed: expected }) => {
                Self::Environment { variable, value, expected }
            }
            other => Self::transport(Transport::ETHERNET, other),
        }
    }
}
