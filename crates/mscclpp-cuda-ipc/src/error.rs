use std::time::Duration;

use mscclpp_core::{Transport, provider::Foreign};
use mscclpp_net::{SystemError, env::BadVariable};

/// An error of this transport alone. Callers get it inside [`mscclpp_core::Error::Transport`], or as the variant of
/// [`mscclpp_core::Error`] that means the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The bytes that a peer sent as an endpoint or a region were not made by this transport.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// The object that the bytes describe: "an endpoint", "a region" or "an answer".
        what: &'static str,
        /// The reason why they cannot be read.
        problem: &'static str,
    },
    /// No process listens at the peer's address any more.
    #[error(
        "the peer's process has ended, or has dropped all that it shared: nothing listens at its socket {address:?}"
    )]
    Gone {
        /// The abstract socket's name.
        address: String,
    },
    /// The peer's process does not answer.
    #[error("the peer's process at socket {address:?} did not answer within {after:?}")]
    Timeout {
        /// The abstract socket's name.
        address: String,
        /// How long this side waited.
        after: Duration,
    },
    /// The peer answered with a refusal.
    #[error("the peer refused: {reason}")]
    Refused {
        /// The peer's reason.
        reason: &'static str,
    },
    /// The socket belongs to a process of another user.
    #[error("the process at socket {address:?} belongs to user {theirs}, this one to user {ours}")]
    WrongUser {
        /// The abstract socket's name.
        address: String,
        /// The peer's user id.
        theirs: u32,
        /// This process's user id.
        ours: u32,
    },
    /// A region or an endpoint made by another provider was passed in.
    #[error(transparent)]
    Foreign(#[from] Foreign),
    /// An environment variable has a malformed value.
    #[error(transparent)]
    Environment(#[from] BadVariable),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

mscclpp_net::debug_as_report!(Error);

impl From<Error> for mscclpp_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Gone { .. } => Self::PeerLost { peer: "a peer".to_owned(), reason: error.to_string() },
            Error::Timeout { address, after } => {
                Self::Timeout { operation: format!("asking the peer's process at socket {address:?}"), after }
            }
            Error::Malformed { what, problem } => Self::malformed_part(what, problem),
            Error::Environment(error) => error.into(),
            other => Self::transport(Transport::CUDA_IPC, other),
        }
    }
}
