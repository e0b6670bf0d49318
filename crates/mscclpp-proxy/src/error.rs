//! The errors of this crate. An error contains the trigger that could not be carried out.

use std::sync::Arc;

use mscclpp_core::SystemFailure;

use crate::{FifoPosition, ProxyTrigger};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a proxy. Each variant is a situation to which a caller can respond.
///
/// The error's text says what went wrong; the cause is its `source`. [`Report`](mscclpp_core::Report) shows both.
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
        /// The field's name.
        field: &'static str,
        /// The value.
        value: u64,
        /// The first value that does not fit.
        limit: u64,
    },
    /// The service has as many semaphores or memories as its triggers can name.
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
    /// The service has not given out this id.
    #[error("there is no {what} {id}: {count} were added to this service")]
    UnknownId {
        /// `semaphore` or `memory`.
        what: &'static str,
        /// The id.
        id: u32,
        /// How many the service has.
        count: u64,
    },
    /// An argument that is wrong in every situation.
    #[error("{0}")]
    InvalidArgument(String),
    /// A trigger could not be carried out. The service has stopped.
    #[error("trigger {position} ({trigger}){} could not be carried out", peer.as_ref().map(|p| format!(" to {p}")).unwrap_or_default())]
    Trigger {
        /// The trigger's position in the FIFO.
        position: FifoPosition,
        /// The trigger.
        trigger: ProxyTrigger,
        /// The label of the trigger's connection, if that is known.
        peer: Option<String>,
        /// The reason.
        source: Arc<Error>,
    },
    /// Several triggers could not be handed over to the transport together. The service has stopped.
    #[error("triggers {first} to {last} to {peer} could not be carried out")]
    Triggers {
        /// The position of the first trigger that may not have been handed over.
        first: FifoPosition,
        /// The position of the last trigger.
        last: FifoPosition,
        /// The label of their connection.
        peer: String,
        /// The reason.
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
    /// A push or a wait of a kernel for a FIFO reached its spin bound.
    #[error(
        "a push or a wait of a kernel for a FIFO of {gpu} reached its spin bound: its proxy did not take what was pushed"
    )]
    FifoWaitTimedOut {
        /// The FIFO's device.
        gpu: String,
    },
    /// A FIFO was aborted, as happens at the end of its proxy, while a kernel waited for it.
    #[error(
        "a push or a wait of a kernel for a FIFO of {gpu} ended because the FIFO was aborted, or its proxy was dropped"
    )]
    FifoAborted {
        /// The FIFO's device.
        gpu: String,
    },
    /// Code on this side called `abort`.
    #[error("the proxy service was aborted: {reason}")]
    Aborted {
        /// The reason that the call gave.
        reason: String,
    },
    /// The service was not started, or was dropped before it carried out what kernels asked for.
    #[error("requests of kernels were not carried out: they pushed triggers to {service}")]
    NotServed {
        /// The service, and what became of it.
        service: String,
    },
    /// Kernels have put or signalled by themselves through channels of a service that was not started.
    #[error(
        "the proxy service of {gpu} was not started (call start_proxy()): small puts and signals, which kernels make \
         themselves, have arrived, but larger puts need the service and would wait for ever"
    )]
    NotStarted {
        /// The service's device.
        gpu: String,
    },
    /// The service's thread panicked in a user's code.
    #[error("the proxy's thread panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A wait ran out of time. The call can be repeated.
    #[error("{operation} did not finish within {after:?}")]
    Timeout {
        /// The operation that did not finish.
        operation: String,
        /// The time that the wait took.
        after: std::time::Duration,
    },
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] SystemFailure),
    /// A connection, memory or semaphore failed.
    #[error(transparent)]
    Core(#[from] mscclpp_core::Error),
    /// A device failed.
    #[error(transparent)]
    Gpu(mscclpp_gpu::Error),
}

/// Unwraps an error of this crate or of the core that was reported for a wait; wraps any other GPU error.
impl From<mscclpp_gpu::Error> for Error {
    fn from(error: mscclpp_gpu::Error) -> Self {
        if let mscclpp_gpu::Error::Wait(said) = &error {
            if let Some(own) = said.downcast_ref::<Self>() {
                return own.clone();
            }
            if let Some(core) = said.downcast_ref::<mscclpp_core::Error>() {
                return Self::Core(core.clone());
            }
        }
        Self::Gpu(error)
    }
}

mscclpp_os::debug_as_report!(Error);

impl Error {
    /// Converts it to the error that a stream reports for a failed wait.
    pub(crate) fn of_a_wait(self) -> mscclpp_gpu::Error {
        match self {
            Self::Gpu(error) => error,
            error => mscclpp_gpu::Error::Wait(Arc::new(error)),
        }
    }

    /// The error of a connection, memory or semaphore that caused this one, if there is one.
    #[must_use]
    pub fn core(&self) -> Option<&mscclpp_core::Error> {
        match self {
            Self::Core(error) => Some(error),
            Self::Trigger { source, .. } | Self::Triggers { source, .. } => source.core(),
            _ => None,
        }
    }

    /// Whether a peer has ended or failed, or the job or the proxy was aborted: nothing has failed by itself on this side.
    pub(crate) fn is_end_of_peer(&self) -> bool {
        matches!(self, Self::Aborted { .. }) || self.core().is_some_and(mscclpp_core::Error::is_end_of_peer)
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
        assert!(error.is_end_of_peer(), "its cause is");
        assert!(!Error::InvalidArgument("an offset".to_owned()).is_end_of_peer());
    }
}
