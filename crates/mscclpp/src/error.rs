use std::{sync::Arc, time::Duration};

/// What this crate's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, in any layer. [`Error::kind`] sorts it by what a caller can do about it.
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
    /// A proxy service failed, or was asked for what it cannot do.
    #[error(transparent)]
    Proxy(#[from] mscclpp_proxy::Error),
    /// Something that was exchanged with another rank could not be made into what was asked for.
    #[error("{what} with rank {peer} (tag {tag}, receiving call number {position} there) could not be made")]
    Exchange {
        /// What was being made.
        what: &'static str,
        /// The other rank.
        peer: usize,
        /// The tag of the exchange.
        tag: u32,
        /// Which receiving call on that (peer, tag) it was, counted from 0: the peer's sending call of the same number
        /// is its counterpart.
        position: u64,
        /// Why.
        source: Box<mscclpp_core::Error>,
    },
    /// A rank did not send what was due. Nothing was consumed; the wait can be repeated.
    #[error(
        "rank {peer} has not sent what {what} needs (tag {tag}, call number {position}) within {after:?}: it has not made \
         its call, or first waits for another rank; make all calls before the first wait, as connect_all() and mesh() do"
    )]
    PeerNotReady {
        /// What was being made.
        what: &'static str,
        /// The rank waited for.
        peer: usize,
        /// The tag of the exchange.
        tag: u32,
        /// Which receiving call on that (peer, tag) it was, counted from 0.
        position: u64,
        /// How long.
        after: Duration,
    },
    /// A call that needs a connection of this communicator got another.
    #[error(
        "the connection to {peer} was not made by connect() of this communicator; where it need not be, name rank and tag: \
         build_semaphore_with(), build_fastest_semaphore_with()"
    )]
    ForeignConnection {
        /// The connection's label.
        peer: String,
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
        source: Arc<std::io::Error>,
    },
    /// The process has a log subscriber already.
    #[error("logging is set up already: call log::init() once, before any other subscriber is installed")]
    LogAlreadySetUp,
}

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The machine lacks or refuses something: a driver, memory, a port, a descriptor.
    System,
    /// A mistake of this library, or a failure it does not know.
    Internal,
    /// Another rank: it died, left, or sent what it should not.
    Remote,
    /// The call, its arguments or the environment can never be right.
    InvalidUsage,
    /// Time ran out; the call can be repeated.
    Timeout,
    /// Somebody gave up on purpose.
    Aborted,
}

mscclpp_os::debug_as_report!(Error);

impl Error {
    /// Which kind it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Bootstrap(error) => bootstrap_kind(error),
            Self::Core(error) => core_kind(error),
            Self::Exchange { source, .. } => core_kind(source),
            Self::Gpu(error) => gpu_kind(error),
            Self::Proxy(error) => proxy_kind(error),
            Self::PeerNotReady { .. } => ErrorKind::Timeout,
            Self::ForeignConnection { .. } | Self::Environment { .. } | Self::LogAlreadySetUp => {
                ErrorKind::InvalidUsage
            }
            Self::System { .. } => ErrorKind::System,
        }
    }

    /// Whether yet another rank's death may be behind it: it says that a rank is gone, or that a transport got no good
    /// answer, as when a rank has given up its endpoints and still runs.
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
        matches!(core, E::PeerLost { .. } | E::PeerClosed { .. } | E::Timeout { .. } | E::Transport(_))
    }
}

/// What a channel said of a wait of a kernel is the error of its own layer again: [`Error::Core`] or [`Error::Proxy`].
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
        E::Io { .. } | E::AddressInUse { .. } => ErrorKind::System,
        E::NoSuchInterface { .. }
        | E::BadAddress { .. }
        | E::BadUniqueId { .. }
        | E::NotTheCreator { .. }
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
