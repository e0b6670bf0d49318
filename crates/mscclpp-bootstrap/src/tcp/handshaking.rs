//! From a bare connection to a proven one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mscclpp_net::dial::Failed;
use mscclpp_net::key::Nonce;
use mscclpp_net::random;

use crate::error::{JOB_IDS, NO_JOB_ID};
use crate::protocol::frame::{self, Frame, Kind, MAX_PAYLOAD};
use crate::protocol::handshake::{Answer, HandshakeError, Initiator, Responder, Verified};
use crate::protocol::hello::{Hello, PROTOCOL_VERSION, Process, Purpose, Rejection};
use crate::protocol::notice;
use crate::protocol::roster::Refused;
use crate::tcp::connection::{Connection, Link, Phase};
use crate::tcp::dialling::ANSWER_LIMIT;
use crate::tcp::service::{Plan, Service};
use crate::{Error, LOG, Party};
use mscclpp_net::wire::Malformed;

/// How long a rank asks again where a job is complete: an earlier job of the same processes may be about to end.
const EARLIER_JOB_LIMIT: Duration = Duration::from_secs(2);

impl Service {
    /// Random bytes to be used once. Without them the job fails: no proof would be worth anything.
    fn nonce(&mut self) -> Option<Nonce> {
        let nonce = random();
        nonce.map_err(|error| self.fail(&error.into(), None)).ok()
    }

    /// The phase in which an accepted connection begins, and the challenge to be sent on it.
    pub(crate) fn challenge_peer(&mut self) -> Option<(Phase, Vec<u8>)> {
        let nonce = self.nonce()?;
        let (responder, challenge) = Responder::challenge(self.plan.key.clone(), nonce);
        Some((Phase::Unproven(responder), challenge))
    }

    /// A frame of the handshake, on a connection that this rank opened.
    pub(crate) fn on_greeting_frame(&mut self, token: u64, frame: &Frame) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        // Each phase ends with the first frame, whatever that is.
        let outcome = match std::mem::replace(&mut connection.phase, Phase::Leaving) {
            Phase::Greeting { peer, purpose } => (peer, self.prove(token, peer, purpose, frame)),
            Phase::Proved { peer, purpose, initiator } => {
                let answer = initiator.conclude(frame);
                (peer, answer.map(|answer| self.answered(token, peer, purpose, answer)))
            }
            other => {
                connection.phase = other;
                return;
            }
        };
        if let (peer, Err(stranger)) = outcome {
            let Some(connection) = self.remove(token) else { return };
            let how = match stranger {
                HandshakeError::Unproven(why) => Failed::Unproven(why.to_owned()),
                HandshakeError::Malformed(_) | HandshakeError::Full(_) => Failed::Other(stranger.to_string()),
            };
            if let (0, HandshakeError::Full(descriptors)) = (peer, stranger) {
                self.formation.set_full(Some(descriptors));
            }
            self.attempt_failed(peer, connection.remote, how);
        }
    }

    /// Answers a challenge: says who this rank is, and proves it.
    fn prove(
        &mut self,
        token: u64,
        peer: usize,
        purpose: Purpose,
        challenge: &Frame,
    ) -> Result<(), HandshakeError> {
        let Some(nonce) = self.nonce() else { return Ok(()) };
        let hello = hello(&self.plan, peer, purpose, nonce);
        let (initiator, bytes) = Initiator::answer(self.plan.key.clone(), &hello, challenge)?;
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.phase = Phase::Proved { peer, purpose, initiator };
            connection.deadline = Some(Instant::now() + ANSWER_LIMIT);
            connection.outbox.push(bytes);
            self.mark_dirty(token);
        }
        Ok(())
    }

    /// The other end has proved itself too, and has answered.
    fn answered(&mut self, token: u64, peer: usize, purpose: Purpose, answer: Answer) {
        if self.failed.is_some() || self.is_closing() {
            // The other end has been sent this rank's notice or goodbye, and will close the connection.
            return;
        }
        match answer {
            Answer::Accepted { job } => {
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.deadline = None;
                    connection.reader.set_limit(MAX_PAYLOAD);
                }
                self.dials.remove(&peer);
                self.give_up_attempts(Some(peer));
                if purpose == Purpose::Join {
                    self.formation.set_full(None);
                    self.plan.job = Some(job);
                    self.joined(token);
                } else {
                    self.link_up(
                        token,
                        Link { peer, ours: true, retire_sent: false, retire_received: false },
                    );
                }
            }
            Answer::Rejected(rejection) => {
                if let Some(connection) = self.remove(token) {
                    self.rejected(peer, purpose, rejection, &connection);
                }
            }
        }
    }

    fn rejected(&mut self, peer: usize, purpose: Purpose, rejection: Rejection, connection: &Connection) {
        let at = connection.remote;
        let local = connection.stream().local_addr().ok().map(|a| a.to_string());
        let how = match &rejection {
            Rejection::WrongPlace { here } => format!("rank {here} listens there, not rank {peer}"),
            _ => "it does not let this rank in".to_owned(),
        };
        let is_complete = matches!(rejection, Rejection::Complete { .. });
        match (reason(&self.plan, peer, at, local, rejection), self.dials.get_mut(&peer)) {
            (Some(error), Some(dial))
                if purpose == Purpose::Join
                    && is_complete
                    && dial.search.started().elapsed() < EARLIER_JOB_LIMIT =>
            {
                let how = Failed::Other(error.to_string());
                dial.complete = Some(error);
                self.attempt_failed(peer, at, how);
            }
            (Some(error), _) if purpose == Purpose::Join => self.fail(&error, None),
            (Some(error), _) => self.attempt_failed(peer, at, Failed::Other(error.to_string())),
            (None, _) => self.attempt_failed(peer, at, Failed::Other(how)),
        }
    }

    /// A frame of the handshake, on a connection that somebody else opened.
    pub(crate) fn on_unproven_frame(&mut self, token: u64, frame: &Frame) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let responder = match std::mem::replace(&mut connection.phase, Phase::Leaving) {
            Phase::Unproven(responder) => responder,
            other => {
                connection.phase = other;
                return;
            }
        };
        match responder.verify(frame) {
            Ok((hello, verified)) => self.admit(token, verified, &hello),
            Err(stranger) => {
                let remote = connection.remote;
                connection.outbox.push(responder.refusal());
                self.mark_dirty(token);
                tracing::info!(target: LOG, rank = self.plan.rank, %remote, why = %stranger, "refused a stranger");
                if let (HandshakeError::Unproven(why), Some(hello)) = (stranger, Responder::claim(frame)) {
                    let (rank, process) = (hello.from, hello.process);
                    let remedy = self.plan.secret_remedy();
                    let what =
                        format!("was refused: {why}; it says that it is rank {rank}, {process}{remedy}");
                    self.note_refusal(remote, what);
                }
            }
        }
    }

    /// Somebody with the job's key has proved itself: admits it, or answers why not.
    fn admit(&mut self, token: u64, verified: Verified, hello: &Hello) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let from = hello.process.at(connection.remote);
        let peer = hello.from as usize;
        let refused = match self.formation.roster_mut() {
            Some(roster) => match roster.admit(hello, &from) {
                Ok(()) => {
                    connection.phase = Phase::Member { rank: peer, joined: false, from };
                    connection.deadline = None;
                    connection.reader.set_limit(MAX_PAYLOAD);
                    connection.outbox.push(verified.accept(self.plan.job.unwrap_or_default()));
                    if let Some(error) = &self.failed {
                        // It comes too late, and learns why.
                        let payload = notice::encode(error, self.plan.rank);
                        connection.outbox.push(frame::encode(Kind::Notice, &payload));
                    }
                    self.mark_dirty(token);
                    return;
                }
                Err(refused) => refused,
            },
            None => match self.judge_latecomer(hello, &from).map_or_else(|| self.admit_peer(hello), Err) {
                Ok(job) => {
                    if let Some(connection) = self.connections.get_mut(&token) {
                        connection.deadline = None;
                        connection.reader.set_limit(MAX_PAYLOAD);
                        connection.outbox.push(verified.accept(job));
                    }
                    self.link_up(
                        token,
                        Link { peer, ours: false, retire_sent: false, retire_received: false },
                    );
                    return;
                }
                Err(refused) => refused,
            },
        };
        let Refused { rejection, fatal } = refused;
        let (rank, from) = (self.plan.rank, &from);
        match &fatal {
            // Before anybody hears of it, and may end this process. A job that has formed may only be about to end.
            Some(error) if self.formation.roster().is_some() => {
                tracing::error!(target: LOG, rank, from, %error, "did not admit a member");
            }
            _ => {
                tracing::warn!(target: LOG, rank, from, ?rejection, "did not admit a member");
            }
        }
        let remote = self.connections.get_mut(&token).map(|connection| {
            connection.outbox.push(verified.reject(&rejection));
            connection.remote
        });
        if let (Rejection::OtherJob { .. }, Some(remote)) = (&rejection, remote) {
            let id = if hello.job == [0; 16] { "without an id" } else { "with another id" };
            let remedy = "if it is of this one, give all ranks the same MSCCLPP_JOB_ID";
            self.note_refusal(remote, format!("was refused: it is rank {peer} of a job {id}; {remedy}"));
        }
        self.mark_dirty(token);
        self.write_dirty();
        if let Some(error) = fatal {
            self.fail(&error, None);
        }
    }

    /// A member that was admitted withdraws its proof (S1): it waited too long for the answer, and tries another address.
    pub(crate) fn proof_withdrawn(&mut self, token: u64) -> Result<(), Malformed> {
        let Some(Phase::Member { rank, joined: false, .. }) = self.connections.get(&token).map(|c| &c.phase)
        else {
            return Err(Malformed("a rank retired after it had joined"));
        };
        let rank = *rank;
        if let Some(roster) = self.formation.roster_mut() {
            roster.withdraw(rank);
        }
        self.remove(token);
        Ok(())
    }

    /// The address of another connection that was admitted as the same rank.
    pub(crate) fn other_claim(&self, token: u64, rank: usize) -> Option<String> {
        // Most often there is none, and the search can be saved.
        self.formation.roster().filter(|roster| roster.is_contested())?;
        self.connections.iter().find_map(|(&other, connection)| match &connection.phase {
            Phase::Member { rank: same, from, .. } if *same == rank && other != token => Some(from.clone()),
            _ => None,
        })
    }

    /// Whether a rank may have a link to this one: the job's id, or why not.
    fn admit_peer(&self, hello: &Hello) -> Result<[u8; 16], Refused> {
        let n = self.plan.n_ranks as u32;
        let refused = |rejection| Refused { rejection, fatal: None };
        let mismatch = |what: &str, ours: &str| {
            refused(Rejection::Mismatch { what: what.to_owned(), theirs: ours.to_owned() })
        };
        if hello.version != PROTOCOL_VERSION {
            return Err(mismatch("protocol versions", &PROTOCOL_VERSION.to_string()));
        }
        if hello.to as usize != self.plan.rank || hello.purpose == Purpose::Join {
            return Err(refused(Rejection::WrongPlace { here: self.plan.rank as u32 }));
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

/// What a rank says of itself to `peer`.
pub(crate) fn hello(plan: &Plan, peer: usize, purpose: Purpose, nonce: Nonce) -> Hello {
    let launched = plan.launched.as_ref().map(|job| job.id);
    Hello {
        version: PROTOCOL_VERSION,
        secret: plan.key.secret,
        purpose,
        job: if purpose == Purpose::Join { launched.or(plan.job) } else { plan.job }.unwrap_or_default(),
        n_ranks: plan.n_ranks as u32,
        from: plan.rank as u32,
        to: peer as u32,
        nonce,
        process: Process::own(),
    }
}

/// The error of a rank that `peer` at `remote` does not let in. Nothing if it listens there that was not looked for.
pub(crate) fn reason(
    plan: &Plan,
    peer: usize,
    remote: SocketAddr,
    local: Option<String>,
    rejection: Rejection,
) -> Option<Error> {
    let (rank, remote) = (plan.rank, remote.to_string());
    let launched = plan.launched.as_ref();
    let our_job = || launched.map_or_else(|| NO_JOB_ID.to_owned(), |job| job.name.clone());
    Some(match rejection {
        Rejection::WrongPlace { .. } => return None,
        Rejection::Mismatch { what, theirs } => {
            let ours = match what.as_str() {
                "protocol versions" => PROTOCOL_VERSION.to_string(),
                "numbers of ranks (n_ranks)" => plan.n_ranks.to_string(),
                "ranks" => format!("rank {rank}"),
                JOB_IDS => our_job(),
                _ => "another".to_owned(),
            };
            Error::Mismatch {
                what,
                ours: Box::new(Party { rank, address: local, value: ours }),
                theirs: Box::new(Party { rank: peer, address: Some(remote), value: theirs }),
            }
        }
        Rejection::Duplicate { first } => {
            let second = Process::own().at(local.unwrap_or_default());
            Error::DuplicateRank { rank, first, second, address: remote }
        }
        Rejection::OtherJob { theirs } => Error::OtherJob { address: remote, ours: our_job(), theirs },
        Rejection::Complete { n_ranks } => {
            Error::JobComplete { address: remote, rank, n_ranks: n_ranks as usize }
        }
    })
}
