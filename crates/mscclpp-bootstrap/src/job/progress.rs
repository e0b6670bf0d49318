//! Progress reports about missing ranks while a job forms.

use std::time::Duration;

use mscclpp_net::dial::{Attempt, Failed};
use mscclpp_os::waiting;

use crate::error::RankList;
use crate::job::Job;
use crate::job::connection::Phase;
use crate::protocol::frame::{self, Kind};
use crate::protocol::notice;

/// The delay of rank 0's first report of missing ranks to those that have joined.
pub(super) const FIRST_PROGRESS: Duration = Duration::from_millis(100);
/// The interval between the reports that follow.
const PROGRESS: Duration = Duration::from_millis(1000);

impl Job {
    /// Tells the ranks that have joined, at rank 0, which are missing, and whether there is room for them.
    pub(super) fn send_progress(&mut self) {
        if self.formation.progress_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.formation.progress_at = Some(self.now + PROGRESS);
        let mut payload = Vec::new();
        notice::put_ranks(&mut payload, &self.formation.missing());
        // Ranks of an earlier version ignore these bytes.
        payload.extend(self.formation.full.map(u32::to_le_bytes).into_iter().flatten());
        let joined = self.connections_in(|phase| matches!(phase, Phase::Member { joined: true, .. }));
        self.say(joined, frame::encode(Kind::Progress, &payload));
    }

    /// Logs who is waited for, if that takes long.
    pub(super) fn log_formation(&mut self) {
        let now = self.now;
        let Some(waited) = self.formation.wait.as_mut().and_then(|wait| wait.due(now)) else { return };
        let missing = self.formation.missing();
        let left = self.plan.deadline.saturating_duration_since(now);
        let attempts = self.dials.get(&0).map(|dial| dial.search.attempts()).unwrap_or_default();
        let whom = match (missing.is_empty(), self.root_at) {
            (false, _) => RankList(&missing).to_string(),
            (true, None) if self.plan.rank == 0 && self.formation.roster().is_none() => {
                "the process that made the unique id".to_owned()
            }
            (true, None) if self.plan.rank > 0 => match attempts.is_empty() {
                true => "rank 0, which has not let this rank in".to_owned(),
                false => "rank 0".to_owned(),
            },
            (true, _) => "all ranks to connect with each other".to_owned(),
        };
        let tried = what_was_tried(&attempts);
        let room = self.formation.no_room();
        let what = format!("{whom}: initialising the bootstrap{room}, which gives up in {left:.1?}{tried}");
        waiting::say(Some(self.plan.rank), waited, &what);
    }
}

/// Describes the search for rank 0 so far, behind a semicolon.
fn what_was_tried(attempts: &[Attempt]) -> String {
    let nobody = Failed::Refused.to_string();
    if attempts.is_empty() || attempts.iter().any(|attempt| attempt.outcome != nobody) {
        return attempts.iter().map(|attempt| format!("; {attempt}")).collect();
    }
    let addresses: Vec<String> = attempts.iter().map(|attempt| attempt.address.to_string()).collect();
    let addresses = addresses.join(", ");
    format!("; nobody listens at {addresses} yet: rank 0 has not started, or was given another address")
}
