//! The parameters of a rank when it starts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::host::HostId;
use crate::protocol::handshake::JobKey;
use crate::protocol::hello::{JobId, LaunchedJob, Process};

/// The time for which a rank asks again if the job at the address is complete, because an earlier job of the same
/// processes may be about to end. If ranks may be replaced, a rank asks until its time is up, because the complete
/// generation will end.
pub const EARLIER_JOB_LIMIT: Duration = Duration::from_secs(2);

pub struct Plan {
    pub rank: usize,
    pub n_ranks: usize,
    pub key: JobKey,
    /// The id of the job; a rank that was given an address does not know it yet.
    pub job: Option<JobId>,
    pub timeout: Duration,
    pub deadline: Instant,
    /// Whether the job was named by an address, which another job may have been given too.
    pub by_address: bool,
    /// The launcher's name of the job, if the job was named by an address.
    pub launched: Option<LaunchedJob>,
    /// The last generation in which this rank was, or 0, in a job whose ranks may be replaced.
    pub last_generation: Option<u64>,
    /// The time after which the wait for missing ranks is first logged.
    pub log_after: Duration,
    /// The time for which a rank asks again if the job at the address is complete.
    pub earlier_job: Duration,
    /// The process of this rank, as it describes itself to others.
    pub process: Process,
}

impl Plan {
    /// Makes the plan of a rank of some job, which has `timeout` from now on to form.
    pub fn for_tests(rank: usize, n_ranks: usize, key: JobKey, timeout: Duration) -> Self {
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
            earlier_job: EARLIER_JOB_LIMIT,
            process: Process::own(),
        }
    }

    /// Returns whether ranks that are gone may be replaced. Then a rank that comes while the job is complete comes
    /// for its next generation.
    pub fn is_elastic(&self) -> bool {
        self.last_generation.is_some()
    }

    /// Returns the advice for keys that differ, behind a semicolon. It is empty if the job was named by a unique id,
    /// which has its key.
    pub fn secret_remedy(&self) -> &'static str {
        match self.by_address {
            true => "; give all ranks the same MSCCLPP_BOOTSTRAP_SECRET, or none of them one",
            false => "",
        }
    }
}

/// The parameters of joining: where rank 0 may be, and what to tell it.
pub struct Join {
    pub candidates: Vec<SocketAddr>,
    /// Whether a process listened there before this rank could know of it. If nobody does, the rank need not wait.
    pub listened: bool,
    pub host: HostId,
    pub domain: HostId,
}
