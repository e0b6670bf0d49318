//! What a rank knows when it starts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::host::HostId;
use crate::protocol::handshake::JobKey;
use crate::protocol::hello::{JobId, LaunchedJob, Process};

pub(crate) struct Plan {
    pub(crate) rank: usize,
    pub(crate) n_ranks: usize,
    pub(crate) key: JobKey,
    /// Not known yet by a rank that was given an address.
    pub(crate) job: Option<JobId>,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// The job was named by an address that another job may have been given too.
    pub(crate) by_address: bool,
    /// What the launcher calls the job, if it was named by an address.
    pub(crate) launched: Option<LaunchedJob>,
    /// Of a job whose ranks may be replaced: the last generation in which this rank was, or 0.
    pub(crate) last_generation: Option<u64>,
    /// After which time it is first logged who is waited for.
    pub(crate) log_after: Duration,
    /// The process of this rank, as it says it to others.
    pub(crate) process: Process,
}

impl Plan {
    /// What a rank of some job knows, which has this time from now on to form.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn for_tests(rank: usize, n_ranks: usize, key: JobKey, timeout: Duration) -> Self {
        Self {
            rank,
            n_ranks,
            key,
            job: Some([5; 16]),
            timeout,
            deadline: Instant::now() + timeout,
            by_address: false,
            launched: None,
            last_generation: None,
            log_after: Duration::MAX,
            process: Process::own(),
        }
    }

    /// Whether ranks of the job that are gone may be replaced: then a rank that comes while it is complete comes for its next
    /// generation.
    pub(crate) fn is_elastic(&self) -> bool {
        self.last_generation.is_some()
    }

    /// What to do if keys differ, behind a semicolon. Nothing if the job was named by a unique id, which has its key.
    pub(crate) fn secret_remedy(&self) -> &'static str {
        match self.by_address {
            true => "; give all ranks the same MSCCLPP_BOOTSTRAP_SECRET, or none of them one",
            false => "",
        }
    }
}

/// How a rank joins: where rank 0 may be, and what to tell it.
pub(crate) struct Join {
    pub(crate) candidates: Vec<SocketAddr>,
    pub(crate) host: HostId,
    pub(crate) domain: HostId,
}
