use mscclpp::{ErrorKind, Report};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of collectives.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call can never be right as it is.
    #[error("{0}")]
    InvalidArgument(String),
    /// Ranks made different calls, or gave a message different sizes. Found with
    /// [`CollectivesBuilder::check_calls`](crate::CollectivesBuilder::check_calls) alone, but for sizes of messages: the receiver
    /// always finds them, and the sender is told within about a second. These collectives cannot be used any more.
    #[error(
        "rank {rank} called {ours}, while rank {other} called {theirs}; all ranks must make the same calls in the same order, and \
         both ranks of a message must give the same size"
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
        "the collectives of rank {rank} cannot be used any more; make new ones{}: {}",
        if .source.kind() == ErrorKind::Remote { ", of the ranks that are left" } else { "" },
        Report(.source.as_ref())
    )]
    Failed {
        /// This rank.
        rank: usize,
        /// Why. The message has its causes, too: the rank that was lost may be one of them.
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
            Self::InvalidArgument(_) | Self::Mismatch { .. } | Self::Overlap { .. } => {
                ErrorKind::InvalidUsage
            }
            Self::Failed { source, .. } => source.kind(),
            Self::Below(error) => error.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mscclpp::{
        errors::{CoreError, ProxyError},
        proxy::{FifoPosition, MemoryId, ProxyTrigger, SemaphoreId, TriggerKind},
    };

    use super::*;

    /// The proxy of a rank that lives may say first that another one was lost.
    #[test]
    fn the_message_of_calls_that_failed_has_the_causes() {
        let memory = (MemoryId::from_raw(0), 0);
        let trigger =
            ProxyTrigger::new(TriggerKind::FLAG, memory, memory, 0, SemaphoreId::from_raw(2)).unwrap();
        let lost = CoreError::PeerLost { peer: "rank 1".to_owned(), reason: "it died".to_owned() };
        let proxy = ProxyError::Trigger {
            position: FifoPosition::from_raw(7),
            trigger,
            peer: Some("rank 2".to_owned()),
            source: Arc::new(lost.into()),
        };
        let source = mscclpp::Error::from(proxy);
        let causes = Report(&source).to_string();
        assert!(causes.contains("rank 1"), "{causes}");
        let error = Error::Failed { rank: 0, source: Box::new(source) };
        assert!(error.to_string().ends_with(&format!("of the ranks that are left: {causes}")), "{error}");
        assert_eq!(Report(&error).to_string(), error.to_string());
        // A `main` that returns it prints a sentence.
        assert_eq!(format!("{error:?}"), error.to_string());
        // Nobody has left where a rank gave up.
        let aborted = CoreError::Aborted { reason: "enough".to_owned() };
        let text = Error::Failed { rank: 0, source: Box::new(aborted.into()) }.to_string();
        assert!(text.contains("make new ones: ") && text.contains("enough"), "{text}");
    }
}
