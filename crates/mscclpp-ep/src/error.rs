use mscclpp::{ErrorKind, Report};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of experts.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call can never be right as it is.
    #[error("{0}")]
    InvalidArgument(String),
    /// A dispatch of this rank had a choice that is no expert. It counted as none.
    #[error("token {token} has a choice that is neither -1 nor one of the {experts} experts")]
    NoExpert {
        /// The number of the token.
        token: usize,
        /// How many experts there are.
        experts: usize,
    },
    /// More rows came than the memory of a [`Layout`](crate::Layout) holds. The others are not there, and no combine sums them.
    #[error(
        "more rows came than the memory of the layout holds, and {choices} choices of tokens have none: give dispatch memory for more; \
         Layout says how many rows are always enough"
    )]
    Dropped {
        /// How many choices of experts of this rank have no row, in all calls since this error was last returned.
        choices: u32,
    },
    /// The rows of a dispatch in [`Layout::Rank`](crate::Layout::Rank) were no longer there when
    /// [`Routed::check_received`](crate::Routed::check_received) came to its turn.
    #[error(
        "rows of a dispatch in micro-batch {micro_batch} were used where they came (Layout::Rank) after a combine or a release() had given \
         them back, or after the next dispatch: kernels that read them come before these"
    )]
    RowsGone {
        /// The micro-batch.
        micro_batch: usize,
    },
    /// A rank called dispatch with more tokens than the capacity. It sent none.
    #[error(
        "rank {rank} called dispatch with more than {capacity} tokens, which is the capacity: it sent none"
    )]
    TooManyTokens {
        /// The rank.
        rank: usize,
        /// The most tokens of a rank.
        capacity: usize,
    },
    /// A rank sent rows of another payload than this one's call: see [`with_payload`](crate::Experts::with_payload). What came
    /// from it has no meaning.
    #[error("rank {rank} sent rows of another payload: all ranks use the same one in the same call")]
    OtherPayload {
        /// The rank.
        rank: usize,
    },
    /// Ranks were lost, and these experts go on without them, since they were set up to
    /// [survive it](crate::ExpertsBuilder::survive_loss). Rows that calls have stored since the check before may be wrong. In
    /// later calls, choices of the lost ranks' experts count as none.
    ///
    /// All ranks that are left go on with the same call; whether they make some again, they agree on by other means. A new rank
    /// in the place of a lost one needs new experts, of the job's next generation. A check returns this error, and no call does.
    #[error(
        "ranks {ranks:?} are lost; rows of calls since the last check may be wrong, and later calls go on without these ranks"
    )]
    Lost {
        /// The ranks, by their numbers in the job.
        ranks: Vec<usize>,
    },
    /// A wait for another rank ended before what it waited for had come: the rank died, or somebody gave up. These experts
    /// cannot be used any more.
    #[error(
        "the experts of rank {rank} cannot be used any more; make new ones{}: {}",
        if .source.kind() == ErrorKind::Remote { ", of the ranks that are left" } else { "" },
        Report(.source.as_ref())
    )]
    Failed {
        /// This rank.
        rank: usize,
        /// Why. The message has its causes, too.
        source: Box<mscclpp::Error>,
    },
    /// A layer below failed, or the ranks do not agree: [`Differ`](mscclpp::Error::Differ) and
    /// [`Malformed`](mscclpp::Error::Malformed).
    #[error(transparent)]
    Below(mscclpp::Error),
}

mscclpp_os::debug_as_report!(Error);
mscclpp::engine_error_from_below!(Error);

impl Error {
    /// The kind of the error, which says what a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidArgument(_)
            | Self::NoExpert { .. }
            | Self::Dropped { .. }
            | Self::RowsGone { .. }
            | Self::TooManyTokens { .. }
            | Self::OtherPayload { .. } => ErrorKind::InvalidUsage,
            Self::Lost { .. } => ErrorKind::Remote,
            Self::Failed { source, .. } => source.kind(),
            Self::Below(error) => error.kind(),
        }
    }
}
