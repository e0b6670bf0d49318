//! From a bare connection to a proven one.

use std::net::SocketAddr;
use std::time::Instant;

use crate::protocol::frame::{self, Frame, Kind, MAX_PAYLOAD};
use crate::protocol::handshake::{
    Hello, Initiator, InitiatorStep, PROTOCOL_VERSION, Purpose, Rejection, Responder, ResponderStep,
    Stranger, refusal,
};
use crate::protocol::notice;
use crate::protocol::wire::Malformed;
use crate::tcp::connection::{Connection, Link, Phase};
use crate::tcp::dial::{Dial, Failed};
use crate::tcp::service::Service;
use crate::{Error, LOG, Party};

fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    // The system's generator fails only where there is none at all; a nonce of zeros then still differs by side.
    if let Err(error) = getrandom::fill(&mut nonce) {
        tracing::error!(target: LOG, %error, "the system gives no random bytes");
    }
    nonce
}

impl Service {
    /// The state in which an accepted connection begins.
    pub(crate) fn meet_stranger(&self) -> Phase {
        Phase::Stranger(Responder::new(self.plan.key.clone(), nonce()))
    }

    /// Begins to look for a connection to a rank.
    pub(crate) fn dial(&mut self, peer: usize, dial: Dial) {
        self.dials.insert(peer, dial);
        self.advance_dials(Instant::now());
    }

    pub(crate) fn advance_dials(&mut self, now: Instant) {
        if self.dials.is_empty() {
            return;
        }
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| match &c.phase {
                // S1: not once the proof is sent.
                Phase::Connecting { .. } | Phase::Greeting { proved: false, .. } => {
                    c.deadline.is_some_and(|at| at <= now)
                }
                _ => false,
            })
            .map(|(&token, _)| token)
            .collect();
        for token in late {
            self.end(token, "no answer in time");
        }
        let peers: Vec<usize> = self.dials.keys().copied().collect();
        for peer in peers {
            let Some(dial) = self.dials.get_mut(&peer) else { continue };
            if now >= dial.deadline {
                self.dial_over(peer, now);
            } else if let Some(address) = dial.attempt(now) {
                let (purpose, limit) = (dial.purpose, dial.attempt_limit());
                self.begin_attempt(peer, purpose, address, now + limit);
            }
        }
    }

    fn begin_attempt(&mut self, peer: usize, purpose: Purpose, address: SocketAddr, deadline: Instant) {
        let hello = Box::new(Hello {
            version: PROTOCOL_VERSION,
            secret: self.plan.key.secret,
            purpose,
            job: self.plan.job.unwrap_or_default(),
            n_ranks: self.plan.n_ranks as u32,
            from: self.plan.rank as u32,
            to: peer as u32,
            nonce: nonce(),
        });
        let phase = Phase::Connecting { peer, purpose, hello };
        let connection = crate::tcp::socket::begin_connect(address)
            .map(|stream| Connection::new(stream, address, phase, Some(deadline)));
        match connection {
            Ok(connection) => {
                if self.enter(connection).is_none() {
                    self.attempt_failed(
                        peer,
                        Failed::Other("the system will not watch the connection".into()),
                    );
                }
            }
            Err(error) => self.attempt_failed(peer, how(&error)),
        }
    }

    /// A connection of ours is established, or has failed to be.
    pub(crate) fn connected(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let error = connection.stream().take_error().unwrap_or_else(Some);
        let Phase::Connecting { peer, purpose, hello } = &connection.phase else { return };
        let (peer, purpose) = (*peer, *purpose);
        if let Some(error) = error {
            self.remove(token);
            self.attempt_failed(peer, how(&error));
            return;
        }
        let (initiator, bytes) = Initiator::start(self.plan.key.clone(), hello);
        connection.phase = Phase::Greeting { peer, purpose, initiator, proved: false };
        connection.outbox.push(bytes);
        self.touch(token);
    }

    /// The connection of an attempt ended.
    pub(crate) fn attempt_ended(&mut self, peer: usize, why: &str) {
        self.attempt_failed(peer, Failed::Other(why.to_owned()));
    }

    pub(crate) fn attempt_failed(&mut self, peer: usize, how: Failed) {
        let now = Instant::now();
        let Some(dial) = self.dials.get_mut(&peer) else { return };
        tracing::debug!(target: LOG, rank = self.plan.rank, peer, %how, "an attempt to connect failed");
        dial.failed(how, now);
        let (unproven, joining) = (dial.all_unproven(), dial.purpose == Purpose::Join);
        match unproven {
            Some((address, reason)) if joining => {
                self.fail(&Error::Unauthenticated { address: address.to_string(), reason }, None);
            }
            _ => self.consider_gone(peer, now),
        }
    }

    /// A frame on a connection of ours in the handshake.
    pub(crate) fn on_greeting_frame(&mut self, token: u64, frame: &Frame) -> Result<(), Malformed> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let Phase::Greeting { peer, purpose, initiator, proved } = &mut connection.phase else {
            return Ok(());
        };
        let (peer, purpose) = (*peer, *purpose);
        match initiator.on_frame(frame) {
            Ok(InitiatorStep::Send(bytes)) => {
                *proved = true;
                connection.deadline = None;
                connection.outbox.push(bytes);
                self.touch(token);
            }
            Ok(InitiatorStep::Accepted { job }) => {
                connection.deadline = None;
                connection.reader.set_limit(MAX_PAYLOAD);
                self.dials.remove(&peer);
                if purpose == Purpose::Join {
                    self.plan.job = Some(job);
                    self.joined(token);
                } else {
                    self.link_up(
                        token,
                        Link { peer, ours: true, retire_sent: false, retire_received: false },
                    );
                }
            }
            Ok(InitiatorStep::Rejected(rejection)) => {
                let connection = self.remove(token);
                self.rejected(peer, purpose, rejection, connection.as_ref());
            }
            Err(Stranger::Unproven(why)) => {
                self.remove(token);
                self.attempt_failed(peer, Failed::Unproven(why.to_owned()));
            }
            Err(Stranger::Malformed(error)) => return Err(error),
        }
        Ok(())
    }

    fn rejected(
        &mut self,
        peer: usize,
        purpose: Purpose,
        rejection: Rejection,
        connection: Option<&Connection>,
    ) {
        let remote = connection.map_or_else(String::new, |c| c.remote.to_string());
        let local = connection.and_then(|c| c.stream().local_addr().ok()).map(|a| a.to_string());
        let rank = self.plan.rank;
        let error = match rejection {
            Rejection::WrongPlace { here } => {
                let how = format!("rank {here} listens there, not rank {peer}");
                return self.attempt_failed(peer, Failed::Other(how));
            }
            Rejection::Mismatch { what, theirs } => {
                let ours = match what.as_str() {
                    "protocol versions" => PROTOCOL_VERSION.to_string(),
                    "numbers of ranks (n_ranks)" => self.plan.n_ranks.to_string(),
                    "ranks" => format!("rank {rank}"),
                    _ => "another".to_owned(),
                };
                Error::Mismatch {
                    what,
                    ours: Box::new(Party { rank, address: local, value: ours }),
                    theirs: Box::new(Party { rank: peer, address: Some(remote), value: theirs }),
                }
            }
            Rejection::Duplicate { first } => {
                Error::DuplicateRank { rank, first, second: local.unwrap_or_default(), address: remote }
            }
            Rejection::Complete { n_ranks } => {
                Error::JobComplete { address: remote, rank, n_ranks: n_ranks as usize }
            }
        };
        if purpose == Purpose::Join {
            self.fail(&error, None);
        } else {
            self.attempt_failed(peer, Failed::Other(error.to_string()));
        }
    }

    /// A frame on a connection that somebody opened, in the handshake.
    pub(crate) fn on_stranger_frame(&mut self, token: u64, frame: &Frame) -> Result<(), Malformed> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let Phase::Stranger(responder) = &mut connection.phase else { return Ok(()) };
        match responder.on_frame(frame) {
            Ok(ResponderStep::Send(bytes)) => {
                connection.outbox.push(bytes);
                self.touch(token);
            }
            Ok(ResponderStep::Verified(hello)) => {
                if let Phase::Stranger(responder) = std::mem::replace(&mut connection.phase, Phase::Leaving) {
                    self.judge(token, responder, &hello);
                }
            }
            Err(stranger) => {
                let remote = connection.remote;
                connection.phase = Phase::Leaving;
                connection.outbox.push(refusal());
                self.touch(token);
                tracing::info!(target: LOG, rank = self.plan.rank, %remote, why = %stranger, "refused a stranger");
                if let Stranger::Unproven(why) = stranger {
                    self.note(remote, format!("was refused: {why}"));
                }
            }
        }
        Ok(())
    }

    /// A member of some job with our key has proved itself: is it one that should be here?
    fn judge(&mut self, token: u64, responder: Responder, hello: &Hello) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let from = connection.remote.to_string();
        let peer = hello.from as usize;
        let (rejection, fatal) = match self.formation.roster() {
            Some(roster) => match roster.admit(hello, &from) {
                Ok(()) => {
                    connection.phase = Phase::Member { rank: peer, joined: false };
                    connection.deadline = None;
                    connection.reader.set_limit(MAX_PAYLOAD);
                    connection.outbox.push(responder.accept(self.plan.job.unwrap_or_default()));
                    if let Some(error) = &self.failed {
                        // It comes too late, and hears why.
                        let payload = notice::encode(error, self.plan.rank);
                        connection.outbox.push(frame::encode(Kind::Notice, &payload));
                    }
                    self.touch(token);
                    return;
                }
                Err(refused) => (refused.rejection, refused.fatal),
            },
            None => match self.admit_peer(hello) {
                Ok(job) => {
                    if let Some(connection) = self.connections.get_mut(&token) {
                        connection.deadline = None;
                        connection.reader.set_limit(MAX_PAYLOAD);
                        connection.outbox.push(responder.accept(job));
                    }
                    self.link_up(
                        token,
                        Link { peer, ours: false, retire_sent: false, retire_received: false },
                    );
                    return;
                }
                Err(rejection) => {
                    let fatal = self.late_clash(hello, &from).map(Box::new);
                    (rejection, fatal)
                }
            },
        };
        tracing::warn!(target: LOG, rank = self.plan.rank, from, ?rejection, "did not let a member in");
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.outbox.push(responder.reject(&rejection));
            self.touch(token);
            self.write_dirty();
        }
        if let Some(error) = fatal {
            self.fail(&error, None);
        }
    }

    /// Judges who wants to be linked to us.
    fn admit_peer(&self, hello: &Hello) -> Result<[u8; 16], Rejection> {
        let n = self.plan.n_ranks as u32;
        let mismatch =
            |what: &str, ours: &str| Rejection::Mismatch { what: what.to_owned(), theirs: ours.to_owned() };
        if hello.version != PROTOCOL_VERSION {
            return Err(mismatch("protocol versions", &PROTOCOL_VERSION.to_string()));
        }
        if hello.purpose == Purpose::Join && hello.to == 0 && self.plan.rank == 0 {
            return Err(if hello.n_ranks == n {
                Rejection::Complete { n_ranks: n }
            } else {
                mismatch("numbers of ranks (n_ranks)", &n.to_string())
            });
        }
        if hello.to as usize != self.plan.rank || hello.purpose == Purpose::Join {
            return Err(Rejection::WrongPlace { here: self.plan.rank as u32 });
        }
        match self.plan.job {
            Some(job)
                if job == hello.job && hello.n_ranks == n && hello.from < n && hello.from != hello.to =>
            {
                Ok(job)
            }
            _ => Err(mismatch("job ids", "one id")),
        }
    }
}

/// How a connect failed.
fn how(error: &std::io::Error) -> Failed {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Failed::Refused,
        _ => Failed::Other(error.to_string()),
    }
}
