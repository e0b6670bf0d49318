//! The parameters of a rank when it starts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::host::HostId;
use crate::protocol::handshake::JobKey;
use crate::protocol::hello::{JobId, LaunchedJob, Process};

/// The limits of waits. Only tests choose others than the default.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The time for which a rank asks again if the job at the address is complete, because an earlier job of the same
    /// processes may be about to end. If ranks may be replaced, a rank asks until its time is up, because the complete
    /// generation will end.
    pub earlier_job: Duration,
    /// The longest time that a proof may wait for its answer before another address has its turn. It is more than
    /// `Liveness::PROMPT` allows: by then the proof has arrived, or its connection has ended, so a slow rank 0 reads the
    /// proof before any later one (S1).
    pub answer: Duration,
    /// The time that a connection of a process that has come again may take to end, or to continue. A broken connection is
    /// noticed by then, so one that does not end is the connection of another rank with this number.
    pub claim: Duration,
    /// The longest time that a second rank 0 waits for an answer. A rank 0 that forms a job answers at once; another program
    /// may never.
    pub second_root: Duration,
    /// The time after which a dropped bootstrap ends if others take none of its last bytes, and for which rank 0 of a job that
    /// failed while it formed waits for ranks that have yet to come.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [short, long] = [2, 5].map(Duration::from_secs);
        Self { earlier_job: short, answer: long, claim: long, second_root: long, linger: short }
    }
}

/// The longest time-out. Longer ones are cut to this, so that they can be added to the time.
const A_YEAR: Duration = Duration::from_secs(86_400 * 365);

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
    pub limits: Limits,
    /// The process of this rank, as it describes itself to others.
    pub process: Process,
}

impl Plan {
    /// Makes the plan of a rank that has `timeout` from `start` on to join its job. Longer times than a year count as a year.
    pub fn new(rank: usize, n_ranks: usize, key: JobKey, start: Instant, timeout: Duration) -> Self {
        let timeout = timeout.min(A_YEAR);
        Self {
            rank,
            n_ranks,
            key,
            job: None,
            timeout,
            deadline: start + timeout,
            by_address: false,
            launched: None,
            last_generation: None,
            log_after: Duration::MAX,
            limits: Limits::default(),
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
    /// Whether the addresses come from a unique id. Its process listens before anybody has the id, so if all addresses refuse,
    /// nobody will listen there later, and the rank fails at once.
    pub listened: bool,
    pub host: HostId,
    pub domain: HostId,
}
