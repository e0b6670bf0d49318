use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use mscclpp_gpu::{Gpu, OutOfBounds};
use mscclpp_os::{SystemError, SystemFailure, env::BadVariable};

use crate::{Transport, TransportFlags};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of endpoints, connections, memories, semaphores or channels. Every variant is a situation in which a
/// caller can do something.
///
/// The error's text says what went wrong; the cause is its [`source`](StdError::source). [`Report`](crate::Report)
/// shows both.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that can never be right.
    #[error("{0}")]
    InvalidArgument(String),
    /// A range is not inside the memory it names.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// No provider of this context serves the transport.
    #[error("no provider of this context serves {transport} (it has: {available}); {reason}")]
    NoProvider {
        /// The transport asked for.
        transport: Transport,
        /// The transports that the context's providers serve in this process now.
        available: TransportFlags,
        /// The thing that is missing, and the way to get it.
        reason: String,
    },
    /// The two sides of a connection use different transports.
    #[error("transport mismatch: the local endpoint uses {local}, the remote one {remote}")]
    TransportMismatch {
        /// This side's transport.
        local: Transport,
        /// The peer's transport.
        remote: Transport,
    },
    /// A memory is used over a transport it was not registered for. If it was registered for none, it is for local
    /// use, as [`RegisteredMemory`](crate::RegisteredMemory) says.
    #[error("{}", not_registered(what, *transport, *registered))]
    NotRegistered {
        /// The memory, and the call that uses it.
        what: &'static str,
        /// The transport that the call needs.
        transport: Transport,
        /// The transports that the memory is registered for.
        registered: TransportFlags,
    },
    /// One side cannot reach the other over this transport.
    #[error("{local} cannot reach {remote} over {transport}: {reason}")]
    Unreachable {
        /// The local device.
        local: String,
        /// The remote device or peer.
        remote: String,
        /// The transport.
        transport: Transport,
        /// The reason, and the remedy.
        reason: String,
    },
    /// Bytes that cannot be read as the thing they should be.
    #[error("cannot read {what}: {problem}")]
    Malformed {
        /// The thing that was expected.
        what: &'static str,
        /// The part that was wrong, with the bytes or values that came instead.
        problem: String,
    },
    /// The process at the other end is gone.
    #[error("lost {peer}: {reason}")]
    PeerLost {
        /// The connection's label, by default what is known of the remote endpoint.
        peer: String,
        /// How the loss was noticed.
        reason: String,
    },
    /// The other end closed its side of the connection.
    #[error("{peer} closed its side of the connection")]
    PeerClosed {
        /// The connection's label, by default what is known of the remote endpoint.
        peer: String,
    },
    /// The peer reported that it failed, and why ([`Connection::tell_failure`](crate::Connection::tell_failure)).
    #[error("{peer}'s {reason} (as it says)")]
    PeerFailed {
        /// The connection's label, by default what is known of the remote endpoint.
        peer: String,
        /// The peer's report: the part that failed there, and why.
        reason: String,
    },
    /// This process called `abort`.
    #[error("aborted: {reason}")]
    Aborted {
        /// The reason given to `abort`.
        reason: String,
    },
    /// A wait ran out of time. It consumed nothing and can be repeated.
    #[error("{operation} did not finish within {after:?}")]
    Timeout {
        /// The event that was waited for, and the peer it should come from.
        operation: String,
        /// The time that the wait took.
        after: Duration,
    },
    /// The queue already holds as many waiting operations as it may. Nothing was taken; the call can be repeated.
    #[error(
        "{waiting} operations to {peer} wait for room in its queue; submit them, or drive it with progress"
    )]
    QueueFull {
        /// The connection's label.
        peer: String,
        /// The number of operations that wait.
        waiting: usize,
    },
    /// A wait inside a kernel reached its spin bound. It consumed nothing and can be repeated.
    #[error("a wait inside a kernel reached its spin bound without a signal or packet from {peer}")]
    DeviceWaitTimedOut {
        /// The peer that did not send it.
        peer: String,
    },
    /// Packets of this kind cannot be used over this channel. Other kinds can.
    #[error("packets between here and {peer} are refused: {reason}")]
    PacketsRefused {
        /// The peer at the other end.
        peer: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A kernel asked a port channel for something impossible. Nothing was moved, and the channel's waits ended.
    #[error("a kernel used a port channel to {peer} {reason}")]
    TriggerRefused {
        /// The peer at the other end.
        peer: String,
        /// The values that were refused, and the remedy.
        reason: &'static str,
    },
    /// An environment variable has a malformed value.
    #[error(transparent)]
    Environment(#[from] BadVariable),
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] SystemFailure),
    /// A device failed.
    #[error(transparent)]
    Gpu(mscclpp_gpu::Error),
    /// A transport failed in a way of its own.
    #[error(transparent)]
    Transport(TransportError),
}

fn not_registered(what: &str, transport: Transport, registered: TransportFlags) -> String {
    match registered.any() {
        true => format!(
            "{what} is registered for {registered}, not for {transport}; register it with that transport too"
        ),
        false => format!(
            "{what} is registered for no transport, for local use alone; its owner must register it for {transport} for \
             this"
        ),
    }
}

/// A provider's own error. Its source is that of the provider's error.
#[derive(Clone)]
pub struct TransportError {
    /// The transport.
    pub transport: Transport,
    /// The error that the provider returned.
    pub error: Arc<dyn StdError + Send + Sync>,
}

mscclpp_os::debug_as_report!(TransportError);

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.transport, self.error)
    }
}

impl StdError for TransportError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

mscclpp_os::debug_as_report!(Error);

/// Unwraps an error of this crate that a semaphore or channel reported for a wait; wraps any other GPU error.
impl From<mscclpp_gpu::Error> for Error {
    fn from(error: mscclpp_gpu::Error) -> Self {
        let own = match &error {
            mscclpp_gpu::Error::Wait(error) => error.downcast_ref::<Self>().cloned(),
            _ => None,
        };
        own.unwrap_or(Self::Gpu(error))
    }
}

impl From<SystemError> for Error {
    fn from(error: SystemError) -> Self {
        Self::System(error.into())
    }
}

impl Error {
    /// Wraps a provider's own error.
    pub fn transport(transport: Transport, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Transport(TransportError { transport, error: Arc::new(source) })
    }

    /// Makes the error of an operation that the operating system refused, with the system's error as its source.
    pub fn system(operation: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        SystemFailure::new(operation, source).into()
    }

    /// Whether the peer has ended or failed, or the job was aborted: nothing has failed by itself on this side.
    #[must_use]
    pub fn is_end_of_peer(&self) -> bool {
        matches!(
            self,
            Self::PeerLost { .. } | Self::PeerClosed { .. } | Self::PeerFailed { .. } | Self::Aborted { .. }
        )
    }

    /// Makes the error of a peer that cannot be reached from `gpu`, or from the CPU.
    pub fn unreachable(
        gpu: Option<&Gpu>,
        remote: impl fmt::Display,
        transport: Transport,
        reason: impl Into<String>,
    ) -> Self {
        let local = gpu.map_or_else(|| "CPU".to_owned(), Gpu::to_string);
        Self::Unreachable { local, remote: remote.to_string(), transport, reason: reason.into() }
    }

    /// Makes the error of bytes that claim to be a provider's part of `what` and cannot be read.
    pub fn malformed_part(what: &'static str, problem: &str) -> Self {
        Self::Malformed { what, problem: format!("in the transport's part, {problem}") }
    }

    /// Converts it to the error that a stream reports for a failed wait.
    pub(crate) fn of_a_wait(self) -> mscclpp_gpu::Error {
        match self {
            Self::Gpu(error) => error,
            error => mscclpp_gpu::Error::Wait(Arc::new(error)),
        }
    }

    /// Returns the same error with the peer called `label`: a provider does not know the caller's name for the peer.
    pub(crate) fn naming(self, label: &str) -> Self {
        match self {
            Self::PeerLost { reason, .. } => Self::PeerLost { peer: label.to_owned(), reason },
            Self::PeerClosed { .. } => Self::PeerClosed { peer: label.to_owned() },
            Self::PeerFailed { reason, .. } => Self::PeerFailed { peer: label.to_owned(), reason },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Report;

    #[test]
    fn a_report_says_each_text_once_and_loses_none() {
        let refused = std::io::Error::from_raw_os_error(13);
        let text = refused.to_string();
        let error = Error::transport(Transport::ETHERNET, Error::system("opening a socket", refused));
        assert_eq!(Report(&error).to_string(), format!("Ethernet: opening a socket failed: {text}"));
        let gpu = Error::from(mscclpp_gpu::Error::InvalidArgument("no such thing".to_owned()));
        assert_eq!(Report(&gpu).to_string(), "no such thing", "what is only passed on is not repeated");
        for error in [error, gpu] {
            assert_eq!(format!("{error:?}"), Report(&error).to_string(), "what main prints");
        }
    }
}
