use std::{io, time::Duration};

use mscclpp_core::{Transport, provider::Foreign};
use mscclpp_net::{SystemError, env::BadVariable, links, wire::Malformed};

/// The errors of this transport. Callers get them inside [`mscclpp_core::Error::Transport`], or as the variant of
/// [`mscclpp_core::Error`] that means the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The verbs library cannot be used.
    #[error(transparent)]
    Library(#[from] &'static mscclpp_verbs_sys::LoadError),
    /// There is no such device on this node.
    #[error("there is no InfiniBand device {wanted}; {found}")]
    NoDevice {
        /// The number or name of the device.
        wanted: String,
        /// The devices that this node has.
        found: String,
    },
    /// A device has no port that can be used.
    #[error("{device} cannot be used: {reason}")]
    NoPort {
        /// The device.
        device: String,
        /// The ports with their states, and what to do.
        reason: String,
    },
    /// The GID index that was asked for cannot be used on this port.
    #[error("GID index {wanted} of {device} port {port} cannot be used; {valid}")]
    NoGid {
        /// The index, or the kind of entry that was looked for.
        wanted: String,
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The entries that can be used.
        valid: String,
    },
    /// A call of the verbs library failed.
    #[error("{device}: {call} failed{hint}")]
    Verbs {
        /// The device.
        device: String,
        /// The call, with the values that matter.
        call: String,
        /// The advice to the user, or nothing.
        hint: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Memory cannot be registered with the adapter.
    #[error("{device} cannot register {bytes} bytes of {memory}: {}", .attempts.join("; "))]
    Register {
        /// The device.
        device: String,
        /// The number of bytes.
        bytes: u64,
        /// The owner of the memory.
        memory: String,
        /// The attempts, and how each failed.
        attempts: Vec<String>,
    },
    /// An operation failed.
    #[error("{opcode} failed with {status} (vendor code {vendor:#x}) between {local} and {remote}: {remedy}")]
    Completion {
        /// The operation.
        opcode: &'static str,
        /// The status's name in verbs.h.
        status: &'static str,
        /// The vendor's error code.
        vendor: u32,
        /// Device, port, GID and queue pair of this side.
        local: String,
        /// The peer, its GID and queue pair.
        remote: String,
        /// The advice to the user.
        remedy: &'static str,
    },
    /// The adapter reported an event that ends its use.
    #[error("{device}: {event}")]
    Event {
        /// The device.
        device: String,
        /// The event.
        event: String,
    },
    /// The reason why the two sides cannot work together: one of them lacks what the other needs, or sent what cannot be used,
    /// or a flush of its GPU failed.
    #[error("{0}")]
    Incompatible(String),
    /// A peer sent bytes that this transport did not make.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// The object that the bytes describe: "an endpoint", "a registered memory" or "a queue pair".
        what: &'static str,
        /// The fault in the bytes.
        problem: &'static str,
    },
    /// The peer did not answer in time.
    #[error("the peer did not {what} within {after:?}")]
    Silent {
        /// The action that the peer did not take.
        what: &'static str,
        /// The time that this side waited.
        after: Duration,
    },
    /// The peer could not make its end of a queue.
    #[error("the peer refused a queue: {reason}")]
    Refused {
        /// The peer's reason.
        reason: String,
    },
    /// A region or an endpoint made by another provider was passed in.
    #[error(transparent)]
    Foreign(#[from] Foreign),
    /// The peer could not be found, or is gone.
    #[error(transparent)]
    Links(#[from] links::Error),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// An environment variable has a malformed value.
    #[error(transparent)]
    Environment(#[from] BadVariable),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

mscclpp_net::debug_as_report!(Error);

impl Error {
    /// Converts an error that was found in `what`, which a peer sent.
    pub(crate) fn in_part_of(what: &'static str, error: links::Error) -> Self {
        match error {
            links::Error::Malformed(Malformed(problem)) => Self::Malformed { what, problem },
            other => Self::Links(other),
        }
    }

    /// Converts the error to one of the core, for `transport`.
    pub(crate) fn over(self, transport: Transport) -> mscclpp_core::Error {
        use mscclpp_core::Error as Core;
        match self {
            Self::Malformed { what, problem } => Core::malformed_part(what, problem),
            Self::Environment(error) => error.into(),
            Self::Links(links::Error::Gone { .. }) => {
                Core::PeerLost { peer: "a peer".to_owned(), reason: self.to_string() }
            }
            Self::Links(links::Error::Closed { .. }) => Core::PeerClosed { peer: "a peer".to_owned() },
            other => Core::transport(transport, other),
        }
    }
}
