//! The acceptance of connections that others open, and the removal of those that do not prove themselves.
//!
//! The cost of strangers is bounded: a limited number of connections, for a limited time, each with at most one frame
//! of the handshake kept.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mscclpp_net::handshake::Responder;
use mscclpp_net::key::Nonce;

use crate::LOG;
use crate::job::connection::{Connection, Phase};
use crate::job::{ConnectionId, Job};
use crate::protocol::handshake::challenge;

/// The longest time that a connection may take to prove that it belongs here.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The most unproven connections that are kept, in addition to one for each rank; beyond that the oldest are closed.
const MAX_UNPROVEN: usize = 256;
/// The time after which an unproven connection may be closed for another one if the process has no descriptor left.
const SLOW: Duration = Duration::from_secs(1);

impl Job {
    /// Event: a process has connected. The nonce must never have been used before.
    pub fn on_accepted(&mut self, now: Instant, from: SocketAddr, nonce: Nonce) -> ConnectionId {
        self.set_time(now);
        self.formation.full = None;
        let (responder, challenge) = challenge(nonce);
        let deadline = Some(self.now + HANDSHAKE_LIMIT);
        let id = self.enter(Connection::new(from, Phase::Unproven(responder), deadline));
        self.unproven.push_back(id);
        self.say([id], challenge);
        self.bound_unproven();
        id
    }

    /// Event: there is no room for another connection, because this many descriptors are open. Returns the bytes to
    /// send on a connection that has come.
    pub fn on_full(&mut self, now: Instant, descriptors: u32) -> Vec<u8> {
        self.set_time(now);
        self.formation.full = Some(descriptors);
        if let Some(times) = self.turned_away.another(now) {
            let room = self.formation.no_room();
            tracing::warn!(target: LOG, rank = self.plan.rank, "turned away a connection{room}{times}");
        }
        Responder::full(descriptors)
    }

    /// Event: connections cannot be accepted. Makes room by ending the oldest one that has not proved itself.
    pub fn on_accept_failed(&mut self, now: Instant, error: &std::io::Error) {
        self.set_time(now);
        if let Some(times) = self.turned_away.another(now) {
            let rank = self.plan.rank;
            tracing::warn!(target: LOG, rank, %error, "cannot accept a connection; pausing{times}");
        }
        self.evict_oldest_unproven();
    }

    /// Makes room by ending the oldest connection that has not proved itself, if a member would have done so by now.
    /// Returns whether there was one.
    pub fn evict_slow(&mut self, now: Instant) -> bool {
        self.set_time(now);
        let slow =
            self.oldest_unproven().is_some_and(|deadline| self.now + HANDSHAKE_LIMIT >= deadline + SLOW);
        if slow {
            self.evict_oldest_unproven();
        }
        slow
    }

    /// Returns whether all ranks must come here and be admitted or refused. That is so at rank 0 while the job forms, and at the
    /// directory of a unique id.
    pub fn awaits_all(&self) -> bool {
        self.formation.roster().is_some() || self.formation.directory().is_some()
    }

    fn bound_unproven(&mut self) {
        let most = MAX_UNPROVEN + self.plan.n_ranks;
        if self.unproven.len() > most {
            let connections = &self.connections;
            // Connections that are closed already, or were admitted, do not count.
            self.unproven.retain(|id| connections.get(id).is_some_and(|c| c.deadline.is_some()));
        }
        if self.unproven.len() > most {
            self.evict_oldest_unproven();
        }
    }

    /// Returns the deadline of the oldest connection that has not proved itself.
    pub(super) fn oldest_unproven(&self) -> Option<Instant> {
        self.unproven.iter().find_map(|id| self.connections.get(id)?.deadline)
    }

    fn evict_oldest_unproven(&mut self) {
        while let Some(id) = self.unproven.pop_front() {
            if self.connections.get(&id).is_some_and(|c| c.deadline.is_some()) {
                self.end(id, "too many connections wait to prove themselves");
                return;
            }
        }
    }

    /// Ends the connections that have not proved themselves in time.
    pub(super) fn expire_unproven(&mut self) {
        while let Some(&id) = self.unproven.front() {
            match self.connections.get(&id).and_then(|c| c.deadline) {
                // The connection is closed already, or was admitted.
                None => {}
                Some(deadline) if deadline > self.now => break,
                Some(_) => self.end(id, "it did not prove in time that it belongs here"),
            }
            self.unproven.pop_front();
        }
    }
}
