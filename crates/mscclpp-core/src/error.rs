use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use mscclpp_gpu::Gpu;
use mscclpp_os::{SystemError, env::BadVariable};

use crate::{Transport, TransportFlags};

/// What this crate's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between endpoints. Every variant is a situation in which a caller can do something.
///
/// Its text says what went wrong; the cause is its [`source`](StdError::source). [`Report`](crate::Report) shows both.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that can never be right.
    #[error("{0}")]
    InvalidArgument(String),
    /// A range that is not inside the memory it names.
    #[error("{what}: offset {offset} + {len} bytes is past the end of {size} bytes")]
    OutOfBounds {
        /// The call and which of its memories.
        what: &'static str,
        /// First byte asked for.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Size of the memory.
        size: u64,
    },
    /// No provider of this context serves the transport.
    #[error("no provider of this context serves {transport} (it has: {available}); {reason}")]
    NoProvider {
        /// The transport asked for.
        transport: Transport,
        /// What the context's providers serve here and now.
        available: TransportFlags,
        /// What is missing, and what to do.
        reason: String,
    },
    /// The two sides of a connection use different transports.
    #[error("transport mismatch: the local endpoint uses {local}, the remote one {remote}")]
    TransportMismatch {
        /// Ours.
        local: Transport,
        /// The peer's.
        remote: Transport,
    },
    /// A memory is used over a transport it was not registered for. If it was registered for none, it is for local use, as
    /// [`RegisteredMemory`](crate::RegisteredMemory) says.
    #[error("{}", not_registered(what, *transport, *registered))]
    NotRegistered {
        /// Which memory of which call.
        what: &'static str,
        /// The transport needed.
        transport: Transport,
        /// What it is registered for.
        registered: TransportFlags,
    },
    /// One side cannot reach the other this way.
    #[error("{local} cannot reach {remote} over {transport}: {reason}")]
    Unreachable {
        /// Our side.
        local: String,
        /// The other side.
        remote: String,
        /// The transport.
        transport: Transport,
        /// Why, and what to do.
        reason: String,
    },
    /// Bytes that are not what they should be.
    #[error("cannot read {what}: {problem}")]
    Malformed {
        /// What was expected.
        what: &'static str,
        /// What was wrong, with what came instead.
        problem: String,
    },
    /// The process at the other end is gone.
    #[error("lost {peer}: {reason}")]
    PeerLost {
        /// The connection's label, by default what is known of the remote endpoint.
        peer: String,
        /// How that was seen.
        reason: String,
    },
    /// The other end closed its side of the connection.
    #[error("{peer} closed its side of the connection")]
    PeerClosed {
        /// The connection's label, by default what is known of the remote endpoint.
        peer: String,
    },
    /// The peer has said that it failed, and why ([`Connection::tell_failure`](crate::Connection::tell_failure)).
    #[error("{peer}'s {reason} (as it says)")]
    PeerFailed {
        /// The connection's label, by default what is known of the remote endpoint.
        peer: String,
        /// What the peer said: what failed there, and why.
        reason: String,
    },
    /// Somebody here called `abort`.
    #[error("aborted: {reason}")]
    Aborted {
        /// What they said.
        reason: String,
    },
    /// A wait ran out of time. It has consumed nothing and can be repeated.
    #[error("{operation} did not finish within {after:?}")]
    Timeout {
        /// What was waited for, and from whom.
        operation: String,
        /// How long.
        after: Duration,
    },
    /// As many operations as may wait for the transport do. Nothing was taken; the call can be repeated.
    #[error(
        "{waiting} operations to {peer} wait for room in its queue; submit them, or drive it with progress"
    )]
    QueueFull {
        /// The connection's label.
        peer: String,
        /// How many wait.
        waiting: usize,
    },
    /// A wait inside a kernel reached its spin bound. It has consumed nothing and can be repeated.
    #[error("a wait inside a kernel reached its spin bound without a signal or packet from {peer}")]
    DeviceWaitTimedOut {
        /// Who did not send it.
        peer: String,
    },
    /// Packets that cannot be used here. Other kinds can.
    #[error("packets between here and {peer} are refused: {reason}")]
    PacketsRefused {
        /// Who is at the other end.
        peer: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A kernel asked a port channel for what cannot be. Nothing was moved, and the channel's waits ended.
    #[error("a kernel used a port channel to {peer} {reason}")]
    TriggerRefused {
        /// Who is at the other end.
        peer: String,
        /// With what, and what to do.
        reason: &'static str,
    },
    /// An environment variable with a malformed value.
    #[error("{variable}={value:?} is not valid: {expected}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The operating system refused something.
    #[error("{operation} failed")]
    System {
        /// What was tried, with the values that matter.
        operation: String,
        /// The system's own words.
        source: Arc<dyn StdError + Send + Sync>,
    },
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
    /// What its provider says.
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

/// What a semaphore or channel said of a wait is that again.
impl From<mscclpp_gpu::Error> for Error {
    fn from(error: mscclpp_gpu::Error) -> Self {
        let own = match &error {
            mscclpp_gpu::Error::Wait(error) => error.downcast_ref::<Self>().cloned(),
            _ => None,
        };
        own.unwrap_or(Self::Gpu(error))
    }
}

impl From<BadVariable> for Error {
    fn from(BadVariable { variable, value, allowed: expected }: BadVariable) -> Self {
        Self::Environment { variable, value, expected }
    }
}

impl From<SystemError> for Error {
    fn from(SystemError { operation, source }: SystemError) -> Self {
        Self::system(operation, source)
    }
}

impl Error {
    /// Wraps a provider's own error.
    pub fn transport(transport: Transport, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Transport(TransportError { transport, error: Arc::new(source) })
    }

    /// What the operating system refused, and its error.
    pub fn system(operation: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::System { operation: operation.into(), source: Arc::new(source) }
    }

    /// A peer that cannot be reached from `gpu`, or from the CPU.
    pub fn unreachable(
        gpu: Option<&Gpu>,
        remote: impl fmt::Display,
        transport: Transport,
        reason: impl Into<String>,
    ) -> Self {
        let local = gpu.map_or_else(|| "CPU".to_owned(), Gpu::to_string);
        Self::Unreachable { local, remote: remote.to_string(), transport, reason: reason.into() }
    }

    /// What a peer's provider made, or somebody else made up, as `what`.
    pub fn malformed_part(what: &'static str, problem: &str) -> Self {
        Self::Malformed { what, problem: format!("in the transport's part, {problem}") }
    }

    /// As a stream tells it.
    pub(crate) fn of_a_wait(self) -> mscclpp_gpu::Error {
        match self {
            Self::Gpu(error) => error,
            error => mscclpp_gpu::Error::Wait(Arc::new(error)),
        }
    }

    /// The same with the peer called `label`: a provider does not know what the caller calls it.
    pub(crate) fn naming(self, label: &str) -> Self {
        match self {
            Self::PeerLost { reason, .. } => Self::PeerLost { peer: label.to_owned(), reason },
            Self::PeerClosed { .. } => Self::PeerClosed { peer: label.to_owned() },
            Self::PeerFailed { reason, .. } => Self::PeerFailed { peer: label.to_owned(), reason },
            other => other,
        }
    }

    pub(crate) fn bounds(what: &'static str, offset: u64, len: u64, size: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Self::OutOfBounds { what, offset, len, size }),
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
