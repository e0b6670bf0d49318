use std::{io, time::Duration};

use mscclpp_core::{Transport, provider::Foreign};
use mscclpp_net::{SystemError, env::BadVariable, links};

/// What can go wrong in this transport alone. Callers get it inside [`mscclpp_core::Error::Transport`], or as the
/// variant of [`mscclpp_core::Error`] that means the same.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The verbs library cannot be used.
    #[error(transparent)]
    Library(#[from] &'static mscclpp_verbs_sys::LoadError),
    /// There is no such device on this machine.
    #[error("there is no InfiniBand device {wanted}; {found}")]
    NoDevice {
        /// Its number or name.
        wanted: String,
        /// The devices that there are.
        found: String,
    },
    /// A device has no port that can be used.
    #[error("{device} cannot be used: {reason}")]
    NoPort {
        /// The device.
        device: String,
        /// The ports and their states, and what to do.
        reason: String,
    },
    /// The GID index that was asked for cannot be used on this port.
    #[error("GID index {wanted} of {device} port {port} cannot be used; {valid}")]
    NoGid {
        /// The index, or what was looked for.
        wanted: String,
        /// The device.
        device: String,
        /// Its port.
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
        /// What to do, if that is known.
        hint: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Memory cannot be registered with the adapter.
    #[error("{device} cannot register {bytes} bytes of {memory}: {}", .attempts.join("; "))]
    Register {
        /// The device.
        device: String,
        /// How many bytes.
        bytes: u64,
        /// Whose memory it is.
        memory: String,
        /// What was tried, and why each failed.
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
        /// What to do.
        remedy: &'static str,
    },
    /// The adapter reported an event that ends its use.
    #[error("{device}: {event}")]
    Event {
        /// The device.
        device: String,
        /// What happened.
        event: String,
    },
    /// The two sides need something that only one of them can do.
    #[error("{0}")]
    Incompatible(String),
    /// What a peer sent was not made by this transport.
    #[error("the transport's part of {what} is malformed: {problem}")]
    Malformed {
        /// "an endpoint", "a region" or "a queue pair".
        what: &'static str,
        /// What was wrong.
        problem: &'static str,
    },
    /// The peer did not answer in time.
    #[error("the peer did not {what} within {after:?}")]
    Silent {
        /// What it should have done.
        what: &'static str,
        /// How long this side waited.
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
    /// The error as the core knows it, for `transport`.
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
