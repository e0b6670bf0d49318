use std::{fmt, sync::Arc};

use mscclpp_core::Report;

use crate::{FifoPosition, ProxyTrigger};

/// What this crate's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a proxy. Every variant is a situation in which a caller can do something.
///
/// Its text says what went wrong; the cause is its `source`. [`Report`] shows both.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size that a FIFO cannot have.
    #[error("a FIFO of {size} triggers: the size must be a power of two from 2 to 4096")]
    FifoSize {
        /// The size asked for.
        size: u64,
    },
    /// A value that does not fit its field of a trigger.
    #[error(
        "{field} {value} does not fit a trigger, whose limit is {limit}; register larger memory in pieces"
    )]
    TriggerRange {
        /// Which field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The first value that does not fit.
        limit: u64,
    },
    /// A service has as many semaphores or memories as its triggers can name.
    #[error("{wanted} more {what} do not fit: {used} of {limit} are in use; start another service for them")]
    TooMany {
        /// `semaphores` or `memories`.
        what: &'static str,
        /// How many were asked for.
        wanted: u64,
        /// How many there are.
        used: u64,
        /// How many there can be.
        limit: u64,
    },
    /// An id that the service has not given out.
    #[error("there is no {what} {id}: {count} were added to this service")]
    UnknownId {
        /// `semaphore` or `memory`.
        what: &'static str,
        /// The id.
        id: u32,
        /// How many there are.
        count: u64,
    },
    /// An argument that can never be right.
    #[error("{0}")]
    InvalidArgument(String),
    /// A trigger that could not be carried out. The service has stopped.
    #[error("trigger {position} ({trigger}){} could not be carried out", peer.as_ref().map(|p| format!(" to {p}")).unwrap_or_default())]
    Trigger {
        /// Its position in the FIFO.
        position: FifoPosition,
        /// What it asked for.
        trigger: ProxyTrigger,
        /// The label of the connection it was for, if that is known.
        peer: Option<String>,
        /// Why.
        source: Arc<Error>,
    },
    /// Several triggers could not be handed over to the transport together. The service has stopped.
    #[error("triggers {first} to {last} to {peer} could not be carried out")]
    Triggers {
        /// The position of the first that may not have been handed over.
        first: FifoPosition,
        /// The position of the last.
        last: FifoPosition,
        /// The label of their connection.
        peer: String,
        /// Why.
        source: Arc<Error>,
    },
    /// A push gave up and left a hole in the FIFO, which the proxy cannot pass.
    #[error(
        "a device thread gave up pushing trigger {position} (its spin bound was reached, or the wait aborted), so that \
         nothing after it can be carried out"
    )]
    Poisoned {
        /// The position of the hole.
        position: FifoPosition,
    },
    /// Somebody here called `abort`.
    #[error("the proxy service was aborted: {reason}")]
    Aborted {
        /// What they said.
        reason: String,
    },
    /// The service's thread panicked in a user's code.
    #[error("the proxy's thread panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// A wait ran out of time. It can be repeated.
    #[error("{operation} did not finish within {after:?}")]
    Timeout {
        /// What was waited for.
        operation: String,
        /// How long.
        after: std::time::Duration,
    },
    /// The operating system refused something.
    #[error("{operation} failed")]
    System {
        /// What was tried.
        operation: String,
        /// The system's own words.
        source: Arc<std::io::Error>,
    },
    /// A connection, memory or semaphore failed.
    #[error(transparent)]
    Core(#[from] mscclpp_core::Error),
    /// A device failed.
    #[error(transparent)]
    Gpu(#[from] mscclpp_gpu::Error),
}

impl fmt::Debug for Error {
    /// As [`Report`] shows it: what a `main` prints that returns it is the message with its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Report(self), f)
    }
}

impl Error {
    /// The error of a connection, memory or semaphore that is behind it, if one is.
    #[must_use]
    pub fn core(&self) -> Option<&mscclpp_core::Error> {
        match self {
            Self::Core(error) => Some(error),
            Self::Trigger { source, .. } | Self::Triggers { source, .. } => source.core(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryId, SemaphoreId, TriggerKind};

    #[test]
    fn debug_says_the_message_and_each_cause_once() {
        let memory = (MemoryId::from_raw(0), 0);
        let trigger =
            ProxyTrigger::new(TriggerKind::FLAG, memory, memory, 0, SemaphoreId::from_raw(2)).unwrap();
        let lost = mscclpp_core::Error::PeerLost { peer: "rank 1".to_owned(), reason: "it died".to_owned() };
        let text = lost.to_string();
        let error = Error::Trigger {
            position: FifoPosition::from_raw(7),
            trigger,
            peer: Some("rank 1".to_owned()),
            source: Arc::new(lost.into()),
        };
        let expected = format!("trigger 7 ({trigger}) to rank 1 could not be carried out: {text}");
        assert_eq!(format!("{error:?}"), expected);
        assert_eq!(format!("{error:#?}"), expected, "also where more lines are asked for");
    }
}
