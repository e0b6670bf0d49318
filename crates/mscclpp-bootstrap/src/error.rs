//! The errors of this crate. Each variant is a situation in which a caller can act.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_net::{
    SystemError,
    dial::Attempt,
    env::BadVariable,
    interface::{NONE_UP, NoSuchInterface},
};

/// The variable with the number of this rank, the only one whose value differs between ranks.
pub(crate) const RANK: &str = "MSCCLPP_RANK";
/// The name of the difference if one rank has an id of its job and another has none.
pub(crate) const JOB_IDS: &str = "ids of the job";
/// The text for the job of a rank that has no id of it.
pub(crate) const NO_JOB_ID: &str = "a job without an id";

/// The advice if one rank has an id of its job and another has none.
const ONE_JOB_OR_TWO: &str = "if this is one job, give all its ranks the same MSCCLPP_JOB_ID; if there are two, give one \
                              of them another port";

/// The result of every function of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reasons why a bootstrap call failed.
///
/// Errors can be cloned, because one event (a lost rank, an abort) fails many calls at once.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank vanished without saying goodbye: it was killed, it crashed, or its node is gone. Every pending and
    /// later call of every rank fails with this.
    #[error("rank {rank} was lost: {detail}")]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// The way in which the loss was noticed, and the rank that noticed it.
        detail: String,
    },

    /// The call needs a rank that has dropped its bootstrap. Calls that do not need it still work.
    #[error("rank {rank} has left the job: it dropped its bootstrap")]
    PeerClosed {
        /// The rank that left.
        rank: usize,
    },

    /// A rank gave up on the whole job with [`abort`](crate::Bootstrap::abort).
    #[error("rank {rank} aborted the job: {reason}")]
    Aborted {
        /// The rank that called abort.
        rank: usize,
        /// The reason it gave.
        reason: String,
    },

    /// The time allowed for an operation ran out.
    #[error("{operation} timed out after {after:.1?}{}", TimeoutDetail { missing, attempts })]
    Timeout {
        /// The operation that timed out.
        operation: String,
        /// The time that was allowed.
        after: Duration,
        /// Ranks that had not come when time ran out; empty if that is not known.
        missing: Vec<usize>,
        /// Addresses that were tried, and how each failed.
        attempts: Vec<Attempt>,
    },

    /// Another socket has the address that rank 0 of this job was given. Choose another port, or end the other job.
    #[error(
        "{address} is in use: something else listens on it, or has a connection from there; choose another port, or end \
         the other job"
    )]
    AddressInUse {
        /// The address that is taken.
        address: SocketAddr,
    },

    /// The named network interface does not exist on this node.
    #[error(
        "there is no network interface {name:?}{} with a suitable address; {}",
        Origin(*variable),
        mscclpp_net::interface::available(available)
    )]
    NoSuchInterface {
        /// The name that was asked for.
        name: String,
        /// The environment variable that holds this name, if one does.
        variable: Option<&'static str>,
        /// Interfaces that exist and have an address of the wanted family.
        available: Vec<String>,
    },

    /// An address could not be parsed, or cannot be used for its purpose.
    #[error("{address:?}{} is not a usable address: {reason}", Origin(*variable))]
    BadAddress {
        /// The address as it was given.
        address: String,
        /// The environment variable that holds this address, if one does.
        variable: Option<&'static str>,
        /// The fault of the address.
        reason: String,
    },

    /// Bytes or a text are no [`UniqueId`](crate::UniqueId).
    #[error("not a unique id: {reason}")]
    BadUniqueId {
        /// The fault of the bytes or the text.
        reason: String,
    },

    /// Nobody listens any more for the ranks of a unique id. Make a new id.
    #[error(
        "nobody listens for the ranks of this unique id at {address}: the process that made the id, or rank 0, has ended, has \
         given the id up, or has not seen all ranks come in time; or the id was used before. An id serves one job, and the \
         process that made it lives until all ranks have come"
    )]
    NobodyListens {
        /// The addresses at which the process that made the id listened, or rank 0.
        address: String,
    },

    /// No network interface of this node is up with an address of the wanted family.
    #[error("{NONE_UP}")]
    NoNetwork,

    /// Two ranks disagree on something that must be equal.
    #[error(
        "{what} differ: {ours}, but {theirs}{}",
        if what == JOB_IDS { format!("; {ONE_JOB_OR_TWO}") } else { String::new() }
    )]
    Mismatch {
        /// The name of the difference: `n_ranks`, `protocol versions`, `collective calls`, ...
        what: String,
        /// The side that noticed the difference.
        ours: Box<Party>,
        /// The other side.
        theirs: Box<Party>,
    },

    /// Two processes claim the same rank. Either a launcher gave one rank twice, or two jobs use one address.
    #[error(
        "rank {rank} came twice to the job at {address}: from {first} and from {second}; either two processes were \
         given this rank, or two jobs share this address: then give one of them another port, or each an MSCCLPP_JOB_ID of \
         its own"
    )]
    DuplicateRank {
        /// The rank that was claimed twice.
        rank: usize,
        /// The origin of the first claim: address, process and host name.
        first: String,
        /// The origin of the second claim, in the same form.
        second: String,
        /// The address at which rank 0 listens.
        address: String,
    },

    /// Rank 0 at this address belongs to a job that is complete already, so another job uses the address. A rank
    /// first asks again for two seconds, because an earlier job of the same processes may be about to end.
    #[error(
        "the job at {address} has all its {n_ranks} ranks already, rank {rank} too: another job uses this address, this \
         rank was started twice, or an earlier job of these processes has not been dropped yet"
    )]
    JobComplete {
        /// The address at which rank 0 of the complete job listens.
        address: String,
        /// The rank that came too late.
        rank: usize,
        /// The number of ranks of the complete job.
        n_ranks: usize,
    },

    /// Rank 0 at this address belongs to another job of a launcher. That job is not disturbed.
    #[error("rank 0 at {address} is of another job ({theirs}), and this rank of {ours}: {ONE_JOB_OR_TWO}")]
    OtherJob {
        /// The address at which rank 0 of the other job listens.
        address: String,
        /// The launcher's name of this rank's job.
        ours: String,
        /// The name of the other job.
        theirs: String,
    },

    /// The process that answers at rank 0's address does not know the job's key, or it has a key and this side has
    /// none. A side with a key returns this only when its time is up, because a stranger could have said the same:
    /// another program may have taken the port after rank 0 ended.
    #[error(
        "rank 0 was not found at {address}: the process there does not accept this rank as a member of its job: {reason}"
    )]
    Unauthenticated {
        /// The address at which rank 0 was looked for.
        address: String,
        /// The key that one side lacks or has different.
        reason: String,
    },

    /// An environment variable has a value that is not understood.
    #[error("{variable} is {value:?}; allowed: {allowed}")]
    BadEnvironment {
        /// The name of the variable.
        variable: &'static str,
        /// The value, hidden for secrets.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },

    /// According to the environment, no launcher has started this process.
    #[error(
        "no launcher has started this process: no variable of mpirun, PMIx, PMI, srun, torchrun or an indexed job of \
         Kubernetes says which rank it is; start it with one of them, or set MSCCLPP_RANK, MSCCLPP_N_RANKS and \
         MSCCLPP_ADDRESS"
    )]
    NotLaunched,

    /// The environment does not say everything that a rank needs to know.
    #[error(
        "{known} {} set, but nothing says {missing}; set {variable}, {}",
        if known.contains(", ") { "are" } else { "is" },
        if variable == RANK { "to a number of its own for each rank" } else { "to the same value for all ranks" }
    )]
    IncompleteEnvironment {
        /// The missing information.
        missing: String,
        /// The variable that can say it.
        variable: String,
        /// The variables that are set.
        known: String,
    },

    /// Two environment variables contradict each other.
    #[error("the environment says two different {what}: {first}, but {second}; unset the one that is wrong")]
    EnvironmentConflict {
        /// The contradicting property: `ranks` or `numbers of ranks`.
        what: String,
        /// One variable, with its value.
        first: String,
        /// The other variable, with its value.
        second: String,
    },

    /// This process is a fork of the one that made the bootstrap and holds its connections.
    #[error(
        "process {child} is a fork of process {parent}, which is the rank: a fork has none of its parent's connections; start \
         processes as new programs (Python: multiprocessing.get_context(\"spawn\")), or make the bootstrap in the fork"
    )]
    Forked {
        /// The process that is the rank.
        parent: u32,
        /// The process that called.
        child: u32,
    },

    /// An argument is out of range.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),

    /// The operating system refused something.
    #[error("{operation}{} failed", match address { Some(a) => format!(" ({a})"), None => String::new() })]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The address of the operation, if it has one.
        address: Option<String>,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

mscclpp_net::debug_as_report!(Error);

impl Error {
    pub(crate) fn incomplete(missing: &str, variable: &str, known: &str) -> Self {
        let [missing, variable, known] = [missing, variable, known].map(str::to_owned);
        Self::IncompleteEnvironment { missing, variable, known }
    }

    /// Makes the error of an interface that does not exist. `variable` is the environment variable that names it, if
    /// one does.
    pub(crate) fn no_such_interface(error: NoSuchInterface, variable: Option<&'static str>) -> Self {
        let NoSuchInterface { name, available } = error;
        Self::NoSuchInterface { name, variable, available }
    }

    pub(crate) fn io(operation: &'static str, source: io::Error) -> Self {
        Self::Io { operation, address: None, source: Arc::new(source) }
    }

    pub(crate) fn io_at(operation: &'static str, address: impl fmt::Display, source: io::Error) -> Self {
        Self::Io { operation, address: Some(address.to_string()), source: Arc::new(source) }
    }

    /// Returns whether this is the end of the whole job, and not only of one call.
    ///
    /// A job also ends by an error of initialisation; this method is about errors of calls on a bootstrap that has
    /// formed. They include [`Error::Io`], which ends the job when its thread cannot go on.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::PeerLost { .. }
                | Self::Aborted { .. }
                | Self::DuplicateRank { .. }
                | Self::Mismatch { .. }
                | Self::Io { .. }
        )
    }
}

impl From<SystemError> for Error {
    fn from(SystemError { operation, source }: SystemError) -> Self {
        Self::io(operation, source)
    }
}

impl From<BadVariable> for Error {
    fn from(BadVariable { variable, value, allowed }: BadVariable) -> Self {
        Self::BadEnvironment { variable, value, allowed }
    }
}

/// One of the two sides of an [`Error::Mismatch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The rank that this side says it is.
    pub rank: usize,
    /// The address of this side, if it is known.
    pub address: Option<String>,
    /// The value that this side has.
    pub value: String,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(address) = &self.address {
            write!(f, " at {address}")?;
        }
        write!(f, " has {}", self.value)
    }
}

/// Shows ` (from MSCCLPP_ADDRESS)` behind a value that an environment variable holds.
pub(crate) struct Origin(pub(crate) Option<&'static str>);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |variable| write!(f, " (from {variable})"))
    }
}

/// Shows `rank 1` or `ranks 1, 2, 3`, and shortens a long list.
pub(crate) struct RankList<'a>(pub(crate) &'a [usize]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        let shown: Vec<_> = self.0.iter().take(SHOWN).map(ToString::to_string).collect();
        let s = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "rank{s} {}", shown.join(", "))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

struct TimeoutDetail<'a> {
    missing: &'a [usize],
    attempts: &'a [Attempt],
}

impl fmt::Display for TimeoutDetail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.missing.is_empty() {
            write!(f, "; missing: {}", RankList(self.missing))?;
        }
        for attempt in self.attempts {
            write!(f, "; {attempt}")?;
        }
        Ok(())
    }
}
