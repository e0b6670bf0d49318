use mscclpp::ErrorKind;

/// What this crate's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with collectives.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call can never be right as it is.
    #[error("{0}")]
    InvalidArgument(String),
    /// The ranks do not make the same collectives.
    #[error("rank {rank} and rank {other} set up collectives with different {what}: {ours} and {theirs}")]
    Differ {
        /// This rank.
        rank: usize,
        /// The other.
        other: usize,
        /// What differs.
        what: &'static str,
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// Ranks made different calls. Found with
    /// [`CollectivesBuilder::check_calls`](crate::CollectivesBuilder::check_calls) alone. These collectives cannot be
    /// used any more.
    #[error(
        "rank {rank} called {ours}, while rank {other} called {theirs}; all ranks make the same calls in the same order"
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// The other.
        other: usize,
        /// This rank's call.
        ours: String,
        /// The other's.
        theirs: String,
    },
    /// Two calls of these collectives ran at the same time, which only graphs can do: replays of one or of two that are put
    /// into different streams. Found with [`CollectivesBuilder::check_calls`](crate::CollectivesBuilder::check_calls)
    /// alone. These collectives cannot be used any more.
    #[error(
        "two collectives of rank {rank} ran at the same time; replay the graphs in one stream, let an event order them, or \
         give each graph collectives of its own"
    )]
    Overlap {
        /// This rank.
        rank: usize,
    },
    /// A wait for another rank ended before what it waited for had come: the rank died, or somebody gave up. These
    /// collectives cannot be used any more.
    #[error(
        "the collectives of rank {rank} cannot be used any more; make new ones, of the ranks that are left: {source}"
    )]
    Failed {
        /// This rank.
        rank: usize,
        /// Why.
        source: Box<mscclpp::Error>,
    },
    /// A layer below failed.
    #[error(transparent)]
    Below(#[from] mscclpp::Error),
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidArgument(_) | Self::Differ { .. } | Self::Mismatch { .. } | Self::Overlap { .. } => {
                ErrorKind::InvalidUsage
            }
            Self::Failed { source, .. } => source.kind(),
            Self::Below(error) => error.kind(),
        }
    }
}

impl From<mscclpp::errors::GpuError> for Error {
    fn from(error: mscclpp::errors::GpuError) -> Self {
        Self::Below(error.into())
    }
}

impl From<mscclpp::errors::CoreError> for Error {
    fn from(error: mscclpp::errors::CoreError) -> Self {
        Self::Below(error.into())
    }
}

impl From<mscclpp::errors::BootstrapError> for Error {
    fn from(error: mscclpp::errors::BootstrapError) -> Self {
        Self::Below(error.into())
    }
}
