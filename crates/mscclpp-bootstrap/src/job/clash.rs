//! Two jobs at one address: handling a rank that comes to a job that is complete.

use crate::Error;
use crate::job::Job;
use crate::job::roster::Refused;
use crate::protocol::hello::{Hello, Origin, Purpose, Rejection};

impl Job {
    /// Judges a rank that wants to join the complete job of this rank 0. Returns `None` if it wants something else.
    ///
    /// If the job was named by an address and formed recently, two jobs may share that address, and a rank of either
    /// may be in the wrong one. So both fail: this job, and the newcomer for good, because it would otherwise join
    /// the next rank 0 that comes. All ranks of a job come within its time-out, so after that time no rank can be in
    /// the wrong job.
    ///
    /// There is no clash if the rank that the newcomer wants to be has left, or if a rank of this job is in the same
    /// process. In these cases the same processes begin their next job, which may have another number of ranks,
    /// before this one is dropped everywhere, and the newcomer asks again until it is. There is no clash either if
    /// ranks of the job may be replaced.
    pub(super) fn judge_latecomer(&mut self, hello: &Hello, from: &Origin) -> Option<Refused> {
        if hello.purpose != Purpose::Join || hello.to != 0 {
            return None;
        }
        let formed_at = self.formation.formed_at()?;
        let roster = self.formation.complete_mut()?;
        let refused = roster.admit(hello, from).err()?;
        // The newcomer replaces a rank whose loss may not be known here yet, or has heard earlier than this rank that
        // one is gone.
        let comes_again = self.plan.is_elastic() || roster.has_process(&hello.process);
        let young = self.plan.by_address && self.now - formed_at <= self.plan.timeout;
        let duplicate = matches!(refused.rejection, Rejection::Duplicate { .. });
        if young && !comes_again && (!duplicate || self.has_clashed() || self.is_here(hello.from as usize)) {
            return Some(refused);
        }
        let complete = Rejection::Complete { n_ranks: self.plan.n_ranks as u32 };
        // A rank of another job, by its launcher's name, is always told so.
        let is_next_job = comes_again && refused.fatal.is_some();
        let rejection = if duplicate || is_next_job { complete } else { refused.rejection };
        Some(Refused { rejection, fatal: None })
    }

    /// Returns whether the job has failed because another process came with the number of one of its ranks.
    pub(super) fn has_clashed(&self) -> bool {
        self.plan.by_address && matches!(self.failed, Some(Error::DuplicateRank { .. }))
    }
}
