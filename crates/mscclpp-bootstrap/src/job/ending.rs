//! The end of a job by a failure, and the departure of a rank. The invariants S1 to S3 are those of
//! [`Job`](crate::job).

use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_net::Report;

use crate::job::connection::{Connection, Phase};
use crate::job::peer::Peer;
use crate::job::roster::Roster;
use crate::job::{Action, ConnectionId, Job};
use crate::protocol::frame::{self, Kind};
use crate::protocol::notice;
use crate::{Error, LOG};

/// The longest time that a dropped bootstrap goes on, even if others still take bytes.
pub const LONGEST_LINGER: Duration = Duration::from_secs(30);

impl Job {
    /// Handles the loss of a rank, by S2.
    pub(super) fn peer_lost(&mut self, rank: usize, why: &str, id: ConnectionId) {
        if self.closing.is_some() || self.failed.is_some() {
            return;
        }
        let detail = format!("{why} without a goodbye (seen by rank {})", self.plan.rank);
        self.fail(&Error::PeerLost { rank, detail }, Some(id));
    }

    /// Fails the job (S3). `from` is the connection over which this rank learned of the failure, if it did.
    pub(super) fn fail(&mut self, error: &Error, from: Option<ConnectionId>) {
        if self.failed.is_some() || self.closing.is_some() {
            return;
        }
        if self.formation.directory().is_some() {
            return self.close();
        }
        self.failed = Some(error.clone());
        tracing::debug!(target: LOG, rank = self.plan.rank, error = %Report(error), "the job has failed");
        self.dials.clear();
        self.give_up_attempts(None);
        let notice = Arc::new(frame::encode(Kind::Notice, &notice::encode(error, self.plan.rank)));
        let mut told = Vec::new();
        for (&id, connection) in &mut self.connections {
            match connection.phase {
                // Unproven connections get the notice once they have proved themselves.
                Phase::Unproven(_) | Phase::Leaving => continue,
                _ if Some(id) == from => continue,
                // S1: the notice goes behind the proof, which must not be lost; and behind the acceptance, without
                // which a member would not take the notice for rank 0's.
                Phase::Proved { .. } | Phase::Member { joined: false, .. } => {}
                _ => connection.outbox.clear(),
            }
            connection.outbox.push(Arc::clone(&notice));
            told.push(id);
        }
        told.into_iter().for_each(|id| self.queue_write(id));
        self.actions.push_back(Action::Failed(error.clone()));
    }

    pub(super) fn close(&mut self) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(self.now + self.plan.limits.linger);
        self.latest_end = self.now + LONGEST_LINGER;
        let late = self.awaits_latecomers();
        if !late {
            self.actions.push_back(Action::StopListening);
        }
        self.close_directory();
        self.dials.clear();
        let (mut others, mut farewells, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for (&id, connection) in &self.connections {
            let farewell = match &connection.phase {
                // A retired connection has had its last frame; the peer gets the goodbye on the other one.
                Phase::Link(link) => (!link.retire_sent).then_some(link.peer),
                // S1: for its peer this connection is a link, or will be.
                Phase::Proved { peer, .. } => Some(*peer),
                // The job did not form, and the notice of that is in the outbox.
                Phase::Member { .. } | Phase::Root => None,
                // The connection closes by itself when its last answer is written.
                Phase::Leaving => continue,
                Phase::Unproven(_) if late => continue,
                _ => {
                    others.push(id);
                    continue;
                }
            };
            if let (Some(peer), None) = (farewell, &self.failed) {
                farewells.push((id, peer));
            }
            told.push(id);
        }
        farewells.into_iter().for_each(|(id, peer)| self.say_goodbye(id, peer));
        told.into_iter().for_each(|id| self.queue_write(id));
        for id in others {
            self.remove(id);
        }
    }

    /// Lets this rank, if it leaves, wait longer, because a peer takes its bytes.
    pub(super) fn linger(&mut self) {
        if let Some(end) = &mut self.closing {
            *end = (self.now + self.plan.limits.linger).min(self.latest_end);
        }
    }

    /// Sends the last frame on a connection to a peer. It says how many messages the peer was sent.
    pub(super) fn say_goodbye(&mut self, id: ConnectionId, peer: usize) {
        let sent = self.peers.get(&peer).map_or(0, Peer::sent);
        self.say([id], frame::encode(Kind::Goodbye, &sent.to_le_bytes()));
    }

    /// Sends the failure of the job, if it has failed, to the rank at the other end of a new connection.
    pub(super) fn tell_latecomer(&mut self, id: ConnectionId) {
        if let Some(error) = &self.failed {
            let notice = notice::encode(error, self.plan.rank);
            self.say([id], frame::encode(Kind::Notice, &notice));
        }
    }

    /// Returns whether rank 0 stays to inform ranks that have not come yet that the job failed while it formed, or
    /// clashed with another. They cannot learn it from any other rank, and would look for rank 0 until their time is
    /// up, or become a rank 0 themselves. After a time-out it does not stay.
    fn awaits_latecomers(&self) -> bool {
        if self.plan.is_elastic() {
            // A rank that comes later comes to the next generation.
            return false;
        }
        let failed = self.failed.as_ref().is_some_and(|error| !matches!(error, Error::Timeout { .. }));
        let forming = failed && self.formation.roster().is_some_and(Roster::awaits_proofs);
        // If more processes come than this job has ranks, they come to the rank 0 that listens.
        let listens = self.plan.rank == 0 && self.formation.second_root().is_none();
        forming || listens && self.has_clashed()
    }

    pub fn is_finished(&self, now: Instant) -> bool {
        let all_informed =
            || !self.awaits_latecomers() && self.connections.values().all(Connection::is_unproven);
        self.closing.is_some_and(|deadline| now >= deadline || all_informed())
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }
}
