//! Accepting connections, and getting rid of those that do not prove themselves.
//!
//! What strangers can cost is bounded: so many connections, for so long, each with at most one frame of the handshake kept.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use mscclpp_net::SystemError;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::LOG;
use crate::protocol::handshake::Responder;
use crate::tcp::connection::Connection;
use crate::tcp::service::Service;
use crate::tcp::socket;

/// How long a connection may take to prove that it belongs here.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Unproven connections kept beside one for each rank; beyond that the oldest go.
const MAX_UNPROVEN: usize = 256;
/// A connection that has not proved itself in this time may be ended for another, when the process has no descriptor left.
const SLOW: Duration = Duration::from_secs(1);
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
        self.keep_spare();
        let mut pause = Duration::ZERO;
        // A bound, so that a flood of strangers leaves time for members.
        for _ in 0..64 {
            let Some(listener) = &self.listener else { return };
            let accepted = match socket::accept(listener) {
                // It comes before the system looks whether anybody waits.
                Err(error) if is_full(&error) && self.spare.take().is_some() => {
                    let accepted = socket::accept(listener);
                    if let Ok(Some((stream, _))) = &accepted
                        && !self.evict_slow()
                    {
                        self.turn_away(stream);
                        pause = ACCEPT_PAUSE;
                        drop(accepted);
                        self.keep_spare();
                        continue;
                    }
                    self.keep_spare();
                    accepted
                }
                accepted => accepted,
            };
            match accepted {
                Ok(None) => return,
                Ok(Some((stream, from))) => {
                    self.formation.set_full(None);
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
                    let now = Instant::now();
                    if let Some(times) = self.turned_away.another(now) {
                        let rank = self.plan.rank;
                        tracing::warn!(target: LOG, rank, %error, "cannot accept a connection; pausing{times}");
                    }
                    self.evict_oldest_unproven();
                    self.resume_accepting = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.resume_accepting = Some(Instant::now() + pause);
    }

    /// Keeps a descriptor in reserve at rank 0 while the job forms: all ranks of it must come here, and be told why not.
    fn keep_spare(&mut self) {
        if self.spare.is_none() && self.formation.roster().is_some() {
            self.spare = UnixDatagram::unbound().ok();
        }
    }

    /// Tells who has connected that there is no room.
    fn turn_away(&mut self, mut stream: &TcpStream) {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
        self.formation.set_full(Some(limit));
        // It always fits. Who has gone again need not know.
        let _ = stream.write(&Responder::full(limit));
        if let Some(times) = self.turned_away.another(Instant::now()) {
            let room = self.formation.no_room();
            tracing::warn!(target: LOG, rank = self.plan.rank, "turned away a connection{room}{times}");
        }
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

    /// Makes room by ending the oldest connection that has not proved itself, if a member would have done so by now.
    fn evict_slow(&mut self) -> bool {
        let slow = self
            .oldest_unproven()
            .is_some_and(|deadline| Instant::now() + HANDSHAKE_LIMIT >= deadline + SLOW);
        if slow {
            self.evict_oldest_unproven();
        }
        slow
    }

    /// When the time is up of the oldest connection that has not proved itself.
    pub(crate) fn oldest_unproven(&self) -> Option<Instant> {
        self.unproven.iter().find_map(|token| self.connections.get(token)?.deadline)
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

/// Whether this process may open no further descriptor.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MFILE.raw_os_error())
}
