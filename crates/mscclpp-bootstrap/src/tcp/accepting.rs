//! Accepting connections, and getting rid of those that do not prove themselves.
//!
//! What strangers can cost is bounded: so many connections, for so long, each with at most one frame of the handshake kept.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use mscclpp_net::SystemError;

use crate::LOG;
use crate::tcp::connection::Connection;
use crate::tcp::service::Service;
use crate::tcp::socket;

/// How long a connection may take to prove that it belongs here.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Unproven connections kept beside one for each rank; beyond that the oldest go.
const MAX_UNPROVEN: usize = 256;
/// A pause in accepting when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Service {
    /// Begins to listen.
    pub(crate) fn set_listener(&mut self, listener: TcpListener) -> Result<(), SystemError> {
        self.events.add_listener(&listener)?;
        self.listener = Some(listener);
        Ok(())
    }

    pub(crate) fn accept_all(&mut self) {
        self.resume_accepting = None;
        // A bound, so that a flood of strangers leaves time for members.
        for _ in 0..64 {
            let Some(listener) = &self.listener else { return };
            match socket::accept(listener) {
                Ok(None) => return,
                Ok(Some((stream, from))) => {
                    let Some((phase, challenge)) = self.challenge_peer() else { return };
                    let deadline = Instant::now() + HANDSHAKE_LIMIT;
                    let mut connection = Connection::new(stream, from, phase, Some(deadline));
                    connection.outbox.push(challenge);
                    if let Some(token) = self.enter(connection) {
                        self.unproven.push_back(token);
                        self.mark_dirty(token);
                    }
                    self.bound_unproven();
                }
                Err(error) => {
                    tracing::warn!(target: LOG, rank = self.plan.rank, %error, "cannot accept a connection; pausing");
                    self.evict_oldest_unproven();
                    self.resume_accepting = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.resume_accepting = Some(Instant::now());
    }

    fn bound_unproven(&mut self) {
        let most = MAX_UNPROVEN + self.plan.n_ranks;
        if self.unproven.len() > most {
            let connections = &self.connections;
            // Those that have gone by themselves, or were admitted, do not count.
            self.unproven.retain(|token| connections.get(token).is_some_and(|c| c.deadline.is_some()));
        }
        if self.unproven.len() > most {
            self.evict_oldest_unproven();
        }
    }

    fn evict_oldest_unproven(&mut self) {
        while let Some(token) = self.unproven.pop_front() {
            if self.connections.get(&token).is_some_and(|c| c.deadline.is_some()) {
                self.end(token, "too many connections wait to prove themselves");
                return;
            }
        }
    }

    /// Ends the connections that have not proved themselves in time.
    pub(crate) fn expire_unproven(&mut self, now: Instant) {
        while let Some(&token) = self.unproven.front() {
            match self.connections.get(&token).and_then(|c| c.deadline) {
                // It is gone, or was admitted.
                None => {}
                Some(deadline) if deadline > now => break,
                Some(_) => self.end(token, "it did not prove in time that it belongs here"),
            }
            self.unproven.pop_front();
        }
        if self.resume_accepting.is_some_and(|at| at <= now) {
            self.accept_all();
        }
    }
}
