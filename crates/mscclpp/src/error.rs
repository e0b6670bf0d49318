use std::time::Duration;

use mscclpp_core::{BadVariable, SystemFailure};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of any layer. [`Error::kind`] sorts errors by what a caller can do about them.
///
/// Its text says what went wrong; the cause is its `source`. [`Report`](crate::Report) shows both.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Processes could not find each other or lost each other.
    #[error(transparent)]
    Bootstrap(Box<mscclpp_bootstrap::Error>),
    /// An endpoint, connection, memory or semaphore failed.
    #[error(transparent)]
    Core(#[from] mscclpp_core::Error),
    /// A device failed.
    #[error(transparent)]
    Gpu(mscclpp_gpu::Error),
    /// A proxy service failed, or got a request that it cannot carry out.
    #[error(transparent)]
    Proxy(#[from] mscclpp_proxy::Error),
    /// An object that was exchanged with another rank could not be made.
    #[error("{what} with rank {peer} (tag {tag}, receiving call number {position} there) could not be made")]
    Exchange {
        /// The call that makes the object, such as `connect`.
        what: &'static str,
        /// The other rank.
        peer: usize,
        /// The tag of the exchange.
        tag: u32,
        /// The number of the receiving call with that peer and tag, counted from 0. The peer's sending call of the same
        /// number is its counterpart.
        position: u64,
        /// The reason.
        source: Box<mscclpp_core::Error>,
    },
    /// A rank did not send its part of an exchange in time. Nothing was consumed; the wait can be repeated.
    #[error(
        "rank {peer} has not sent what {what} needs (tag {tag}, call number {position}) within {after:?}: it has not made \
         its call, or first waits for another rank; make all calls before the first wait, as connect_all() and mesh() do"
    )]
    PeerNotReady {
        /// The call that makes the object, such as `connect`.
        what: &'static str,
        /// The rank waited for.
        peer: usize,
        /// The tag of the exchange.
        tag: u32,
        /// The number of the receiving call with that peer and tag, counted from 0.
        position: u64,
        /// The time that was waited.
        after: Duration,
    },
    /// A call that needs a connection of this communicator got one that was made otherwise.
    #[error(
        "the connection to {peer} was not made by connect() of this communicator; where it need not be, name rank and tag: \
         build_semaphore_with(), build_fastest_semaphore_with()"
    )]
    ForeignConnection {
        /// The connection's label.
        peer: String,
    },
    /// An argument that can never be right.
    #[error("{0}")]
    InvalidArgument(String),
    /// The ranks that set up an engine do not give the same value: see [`engine::Group`](crate::engine::Group).
    #[error("rank {rank} and rank {other} set up {engine} with different {what}: {ours} and {theirs}")]
    Differ {
        /// The engine that is set up, such as `collectives`.
        engine: &'static str,
        /// This rank.
        rank: usize,
        /// The other.
        other: usize,
        /// The setting that differs.
        what: &'static str,
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// Another rank sent something else than was due, while an engine was set up or used. All ranks that were notified of it have
    /// this error.
    #[error("rank {rank} cannot read what rank {other} sent it for {engine}: {problem}")]
    Malformed {
        /// The engine.
        engine: &'static str,
        /// This rank.
        rank: usize,
        /// The rank whose message it is.
        other: usize,
        /// The message that came, and the one that was expected.
        problem: String,
    },
    /// The value of an environment variable is malformed.
    #[error(transparent)]
    Environment(#[from] BadVariable),
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] SystemFailure),
    /// The process has a log subscriber already.
    #[error("logging is set up already: call log::init() once, before any other subscriber is installed")]
    LogAlreadySetUp,
}

/// The kind of an [`Error`], by what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The node lacks or refuses something: a driver, memory, a port, a descriptor.
    System,
    /// This library has a fault, or the failure is unknown to it.
    Internal,
    /// Another rank died, left, or sent something wrong.
    Remote,
    /// The call, its arguments or the environment can never be right.
    InvalidUsage,
    /// Time ran out; the call can be repeated.
    Timeout,
    /// A rank aborted the job.
    Aborted,
}

mscclpp_os::debug_as_report!(Error);

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Bootstrap(error) => bootstrap_kind(error),
            Self::Core(error) => core_kind(error),
            Self::Exchange { source, .. } => core_kind(source),
            Self::Gpu(error) => gpu_kind(error),
            Self::Proxy(error) => proxy_kind(error),
            Self::PeerNotReady { .. } => ErrorKind::Timeout,
            Self::InvalidArgument(_)
            | Self::Differ { .. }
            | Self::ForeignConnection { .. }
            | Self::Environment { .. }
            | Self::LogAlreadySetUp => ErrorKind::InvalidUsage,
            Self::Malformed { .. } => ErrorKind::Remote,
            Self::System { .. } => ErrorKind::System,
        }
    }

    /// Whether the death of a rank that this error does not name may be the cause: the error says that a rank is gone or
    /// has failed, or that a transport got no good answer, as when a rank has given up its endpoints and still runs.
    pub(crate) fn may_follow_a_loss(&self) -> bool {
        use mscclpp_core::Error as E;
        let core = match self {
            Self::Bootstrap(error) => {
                use mscclpp_bootstrap::Error as E;
                return matches!(**error, E::PeerLost { .. } | E::PeerClosed { .. });
            }
            Self::Core(error) => error,
            Self::Exchange { source, .. } => source,
            Self::Proxy(error) => match error.core() {
                Some(error) => error,
                None => return false,
            },
            _ => return false,
        };
        matches!(
            core,
            E::PeerLost { .. }
                | E::PeerClosed { .. }
                | E::PeerFailed { .. }
                | E::Timeout { .. }
                | E::Transport(_)
        )
    }
}

/// Turns an error that a channel reported about a kernel's wait back into the error of its own layer: [`Error::Core`] or
/// [`Error::Proxy`].
impl From<mscclpp_gpu::Error> for Error {
    fn from(error: mscclpp_gpu::Error) -> Self {
        match mscclpp_proxy::Error::from(error) {
            mscclpp_proxy::Error::Gpu(error) => Self::Gpu(error),
            mscclpp_proxy::Error::Core(error) => Self::Core(error),
            error => Self::Proxy(error),
        }
    }
}

impl From<mscclpp_bootstrap::Error> for Error {
    fn from(error: mscclpp_bootstrap::Error) -> Self {
        Self::Bootstrap(Box::new(error))
    }
}

fn bootstrap_kind(error: &mscclpp_bootstrap::Error) -> ErrorKind {
    use mscclpp_bootstrap::Error as E;
    match error {
        E::PeerLost { .. } | E::PeerClosed { .. } | E::Unauthenticated { .. } => ErrorKind::Remote,
        E::Aborted { .. } => ErrorKind::Aborted,
        E::Timeout { .. } => ErrorKind::Timeout,
        E::Io { .. } | E::AddressInUse { .. } | E::NoNetwork => ErrorKind::System,
        E::NoSuchInterface { .. }
        | E::BadAddress { .. }
        | E::BadUniqueId { .. }
        | E::NobodyListens { .. }
        | E::Mismatch { .. }
        | E::DuplicateRank { .. }
        | E::JobComplete { .. }
        | E::OtherJob { .. }
        | E::NotLaunched
        | E::IncompleteEnvironment { .. }
        | E::EnvironmentConflict { .. }
        | E::BadEnvironment { .. }
        | E::Forked { .. }
        | E::InvalidArgument(_) => ErrorKind::InvalidUsage,
        _ => ErrorKind::Internal,
    }
}

fn proxy_kind(error: &mscclpp_proxy::Error) -> ErrorKind {
    use mscclpp_proxy::Error as E;
    match error {
        E::Core(error) => core_kind(error),
        E::Gpu(error) => gpu_kind(error),
        E::Trigger { source, .. } | E::Triggers { source, .. } => proxy_kind(source),
        E::FifoSize { .. }
        | E::TriggerRange { .. }
        | E::TooMany { .. }
        | E::UnknownId { .. }
        | E::InvalidArgument(_)
        | E::Poisoned { .. }
        | E::NotServed { .. }
        | E::NotStarted { .. }
        | E::Panicked { .. } => ErrorKind::InvalidUsage,
        E::Aborted { .. } | E::FifoAborted { .. } => ErrorKind::Aborted,
        E::Timeout { .. } | E::FifoWaitTimedOut { .. } => ErrorKind::Timeout,
        E::System { .. } => ErrorKind::System,
        _ => ErrorKind::Internal,
    }
}

fn core_kind(error: &mscclpp_core::Error) -> ErrorKind {
    use mscclpp_core::Error as E;
    match error {
        E::PeerLost { .. } | E::PeerClosed { .. } | E::PeerFailed { .. } | E::Malformed { .. } => {
            ErrorKind::Remote
        }
        E::Aborted { .. } => ErrorKind::Aborted,
        E::Timeout { .. } | E::DeviceWaitTimedOut { .. } | E::QueueFull { .. } => ErrorKind::Timeout,
        E::System { .. } | E::Transport(_) => ErrorKind::System,
        E::Gpu(error) => gpu_kind(error),
        E::InvalidArgument(_)
        | E::OutOfBounds { .. }
        | E::NoProvider { .. }
        | E::TransportMismatch { .. }
        | E::NotRegistered { .. }
        | E::Unreachable { .. }
        | E::PacketsRefused { .. }
        | E::TriggerRefused { .. }
        | E::Environment { .. } => ErrorKind::InvalidUsage,
        _ => ErrorKind::Internal,
    }
}

fn gpu_kind(error: &mscclpp_gpu::Error) -> ErrorKind {
    use mscclpp_gpu::Error as E;
    match error {
        E::Unavailable { .. } | E::Driver { .. } | E::System { .. } => ErrorKind::System,
        E::Timeout { .. } => ErrorKind::Timeout,
        E::Wait(_) => match Error::from(error.clone()) {
            Error::Gpu(_) => ErrorKind::Internal,
            told => told.kind(),
        },
        E::Forked { .. }
        | E::NoSuchDevice { .. }
        | E::OutOfBounds { .. }
        | E::InvalidArgument(_)
        | E::NotExportable { .. }
        | E::NoPeerAccess { .. }
        | E::NoSuchSymbol { .. }
        | E::Compile { .. }
        | E::KernelFailed { .. }
        | E::Race { .. }
        | E::Environment { .. } => ErrorKind::InvalidUsage,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_look_through_the_layers() {
        let gpu = mscclpp_gpu::Error::Timeout {
            operation: "a stream".to_owned(),
            after: Duration::ZERO,
            remedy: "",
        };
        assert_eq!(Error::from(mscclpp_core::Error::from(gpu)).kind(), ErrorKind::Timeout);
        let lost = mscclpp_bootstrap::Error::PeerLost { rank: 3, detail: String::new() };
        assert_eq!(Error::from(lost).kind(), ErrorKind::Remote);
        let source = Box::new(mscclpp_core::Error::Aborted { reason: String::new() });
        let exchange = Error::Exchange { what: "a connection", peer: 1, tag: 0, position: 0, source };
        assert_eq!(exchange.kind(), ErrorKind::Aborted);
    }
}
