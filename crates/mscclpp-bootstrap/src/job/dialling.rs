//! The search for a connection to a rank, and the outcomes of attempts. The invariant S1 is that of
//! [`Job`](crate::job).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mscclpp_net::dial::{Failed, Search};
use mscclpp_net::key::Nonce;

use crate::job::Job;
use crate::job::action::{Action, ConnectionId};
use crate::job::connection::{Connection, Phase};
use crate::protocol::frame::{self, Kind};
use crate::protocol::hello::Purpose;
use crate::{Error, LOG};

/// Why an attempt ends that took too long.
pub(super) const NO_ANSWER: &str = "no answer in time";

/// The time for which a second rank 0 asks again if nobody answers. The first one has bound its port, so this one
/// could not have it, but the port refuses connections until the first one listens, an instant later.
const ABOUT_TO_LISTEN: Duration = Duration::from_secs(1);

/// The search for a connection to one rank. It tries one address after the other, because the rank could already have
/// taken an abandoned connection for a link (S1). A connection whose proof is not answered is passed over; see
/// `Job::attempt_expired`.
pub(super) struct Dial {
    pub(super) purpose: Purpose,
    pub(super) search: Search,
    /// The error that a job was complete where this rank asked. It may have been an earlier job of the same
    /// processes.
    pub(super) complete: Option<Error>,
}

impl Job {
    pub(super) fn dial(
        &mut self,
        peer: usize,
        purpose: Purpose,
        candidates: Vec<SocketAddr>,
        deadline: Instant,
    ) {
        let search = Search::new(candidates, self.now, deadline);
        self.dials.insert(peer, Dial { purpose, search, complete: None });
        self.advance_dials();
    }

    pub(super) fn advance_dials(&mut self) {
        let now = self.now;
        if self.dials.is_empty() {
            return;
        }
        let late: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, c)| match &c.phase {
                Phase::Connecting { .. } | Phase::Greeting { .. } | Phase::Proved { .. } => {
                    c.deadline.is_some_and(|at| at <= now)
                }
                _ => false,
            })
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            self.attempt_expired(id);
        }
        let peers: Vec<usize> = self.dials.keys().copied().collect();
        for peer in peers {
            let Some(dial) = self.dials.get_mut(&peer) else { continue };
            if now >= dial.search.deadline() {
                self.dial_over(peer);
            } else if let Some(address) = dial.search.attempt(now) {
                let (purpose, deadline) = (dial.purpose, now + dial.search.attempt_limit());
                let phase = Phase::Connecting { peer, purpose };
                let id = self.enter(Connection::new(address, phase, Some(deadline)));
                self.actions.push_back(Action::Dial { id, address });
            }
        }
    }

    fn attempt_expired(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Proved { peer, purpose, .. } = connection.phase else {
            return self.end(id, NO_ANSWER);
        };
        connection.deadline = None;
        let Some(dial) = self.dials.get_mut(&peer) else { return };
        if !dial.search.pass_over(connection.remote, now) {
            // There is no other address to try now.
            connection.deadline = Some(now + self.plan.limits.answer);
        } else if purpose == Purpose::Join {
            // S1: rank 0 must not take this connection for one of this rank beside the next one.
            connection.phase = Phase::Abandoned { peer };
            self.say([id], frame::encode(Kind::Retire, &[]));
        }
        // Other ranks may have several connections to each other, so this one is used if it is still answered.
    }

    /// Event: a connection that this rank opened is established. The nonce must never have been used before.
    pub fn on_connected(&mut self, now: Instant, id: ConnectionId, local: SocketAddr, nonce: Nonce) {
        self.set_time(now);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Connecting { peer, purpose } = connection.phase else { return };
        connection.local = Some(local);
        connection.phase = Phase::Greeting { peer, purpose, nonce };
    }

    /// Event: a connection that this rank opened could not be established.
    pub fn on_dial_failed(&mut self, now: Instant, id: ConnectionId, how: Failed) {
        self.set_time(now);
        let Some(connection) = self.connections.get(&id) else { return };
        let Phase::Connecting { peer, .. } = connection.phase else { return };
        let remote = connection.remote;
        self.remove(id);
        self.attempt_failed(peer, remote, how);
    }

    pub(super) fn attempt_failed(&mut self, peer: usize, address: SocketAddr, how: Failed) {
        if let Some(otherwise) = self.formation.second_root().cloned() {
            let now = self.now;
            match self.dials.get_mut(&peer) {
                Some(dial) if now - dial.search.started() < ABOUT_TO_LISTEN => {
                    dial.search.failed(address, how, now);
                }
                _ => self.fail(&otherwise, None),
            }
            return;
        }
        let now = self.now;
        let (rank, keyed) = (self.plan.rank, self.plan.key.secret);
        let Some(dial) = self.dials.get_mut(&peer) else { return self.look_again(peer) };
        tracing::debug!(target: LOG, rank, peer, %address, %how, "an attempt to connect failed");
        let why = how.to_string();
        let news = dial.search.failed(address, how, now);
        let (unproven, joining) = (dial.search.unproven(), dial.purpose == Purpose::Join);
        if joining && self.formation.listened() && dial.search.all_refused() {
            let tried = dial.search.attempts();
            let tried: Vec<String> = tried.iter().map(|attempt| attempt.address.to_string()).collect();
            self.fail(&Error::NobodyListens { address: tried.join(", ") }, None);
            return;
        }
        match unproven {
            // With a key, a stranger could have said so too, and must not end the job by it.
            Some((address, reason)) if joining && !keyed => {
                let reason = format!("{reason}{}", self.plan.secret_remedy());
                self.fail(&Error::Unauthenticated { address: address.to_string(), reason }, None);
                return;
            }
            _ if news && keyed => tracing::warn!(
                target: LOG, rank, peer, %address, why,
                "not let in, without a proof: by a stranger, or because the keys differ; trying until time is up"
            ),
            _ => {}
        }
        self.consider_gone(peer);
    }

    /// Ends the search for a rank that has used up its time.
    fn dial_over(&mut self, rank: usize) {
        if let Some(otherwise) = self.formation.second_root().cloned() {
            return self.fail(&otherwise, None);
        }
        let Some(dial) = self.dials.remove(&rank) else { return };
        let after = self.now - dial.search.started();
        let error = match (dial.search.unproven(), dial.complete) {
            (_, Some(error)) => error,
            (Some((address, reason)), _) if dial.purpose == Purpose::Join => Error::Unauthenticated {
                address: address.to_string(),
                reason: format!(
                    "{reason}, or a stranger answers there, because rank 0 has ended or never listened there (it was asked \
                     again for {after:.1?}){}",
                    self.plan.secret_remedy()
                ),
            },
            _ => Error::Timeout {
                operation: match dial.purpose {
                    Purpose::Join if self.plan.rank == 0 => {
                        "reaching the process that made the unique id".to_owned()
                    }
                    Purpose::Join => format!("connecting to rank {rank}{}", self.formation.no_room()),
                    _ => format!("connecting to rank {rank}"),
                },
                after,
                missing: vec![rank],
                attempts: dial.search.attempts(),
            },
        };
        self.give_up_attempts(Some(rank));
        if dial.purpose == Purpose::Peer {
            if let Some(peer) = self.peers.get_mut(&rank) {
                peer.drop_waiting();
            }
            self.actions.push_back(Action::Gone { peer: rank, error });
        } else {
            self.fail(&error, None);
        }
    }

    /// Ends the attempts to connect to a rank, or to all ranks, on which no proof was sent, or only one that was
    /// withdrawn (S1).
    pub(super) fn give_up_attempts(&mut self, rank: Option<usize>) {
        let open = |phase: &Phase| match phase {
            Phase::Connecting { peer, .. } | Phase::Greeting { peer, .. } | Phase::Abandoned { peer } => {
                rank.is_none_or(|rank| rank == *peer)
            }
            _ => false,
        };
        for id in self.connections_in(open) {
            self.remove(id);
        }
    }
}
