//! The handshake that makes a bare connection a proven one.

use std::net::SocketAddr;

use mscclpp_net::dial::Failed;
use mscclpp_net::handshake::{self, Responder, Verified};
use mscclpp_net::key::Nonce;

use crate::error::{JOB_IDS, NO_JOB_ID};
use crate::job::connection::{Connection, Link, Phase};
use crate::job::roster::Refused;
use crate::job::{ConnectionId, Job, Plan};
use crate::protocol::handshake::{Answer, HandshakeError, claim};
use crate::protocol::hello::{Hello, Origin, PROTOCOL_VERSION, Purpose, Rejection};
use crate::{Error, LOG, Party};
use mscclpp_net::wire::{Malformed, Wire};

impl Job {
    pub(super) fn on_handshake_frame(&mut self, id: ConnectionId, frame: &handshake::Frame) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        // Each phase ends with its first frame, whatever that is.
        let (peer, outcome) = match std::mem::replace(&mut connection.phase, Phase::Leaving) {
            Phase::Unproven(responder) => return self.on_hello(id, &responder, frame),
            Phase::Greeting { peer, purpose, nonce } => (peer, self.prove(id, peer, purpose, nonce, frame)),
            Phase::Proved { peer, purpose, initiator } => {
                let answer = self.plan.key.conclude(initiator, frame);
                (peer, answer.map(|answer| self.answered(id, peer, purpose, answer)))
            }
            other => {
                connection.phase = other;
                return;
            }
        };
        let Err(stranger) = outcome else { return };
        let Some(connection) = self.remove(id) else { return };
        let how = match stranger {
            HandshakeError::Unproven(why) => Failed::Unproven(why.to_owned()),
            HandshakeError::Malformed(_) | HandshakeError::Full(_) => Failed::Other(stranger.to_string()),
        };
        if let (0, HandshakeError::Full(descriptors)) = (peer, stranger) {
            self.formation.full = Some(descriptors);
        }
        self.attempt_failed(peer, connection.remote, how);
    }

    /// Answers a challenge: says who this rank is, and proves it.
    fn prove(
        &mut self,
        id: ConnectionId,
        peer: usize,
        purpose: Purpose,
        nonce: Nonce,
        challenge: &handshake::Frame,
    ) -> Result<(), HandshakeError> {
        let hello = hello(&self.plan, peer, purpose, nonce);
        let (initiator, bytes) = self.plan.key.answer(&hello, challenge)?;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = Phase::Proved { peer, purpose, initiator };
            connection.deadline = Some(self.now + self.plan.limits.answer);
            self.say([id], bytes);
        }
        Ok(())
    }

    /// Handles the answer of the other end, which has proved itself too.
    fn answered(&mut self, id: ConnectionId, peer: usize, purpose: Purpose, answer: Answer) {
        if self.failed.is_some() || self.is_closing() {
            // The other end has been sent this rank's notice or goodbye, and will close the connection. Until then
            // this rank reads what comes: if it closed the connection with bytes unread, the system would throw its
            // last frames away.
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.phase = Phase::Abandoned { peer };
                connection.has_proved_itself();
                self.queue_write(id);
            }
            return;
        }
        match answer {
            Answer::Accepted { .. } if self.formation.second_root().is_some() => {
                self.second_root_answered(None);
            }
            Answer::Accepted { job } => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.has_proved_itself();
                }
                self.dials.remove(&peer);
                self.give_up_attempts(Some(peer));
                if purpose == Purpose::Join {
                    self.formation.full = None;
                    self.plan.job = Some(job);
                    self.joined(id);
                } else {
                    self.link_up(id, Link::new(peer, true));
                }
            }
            Answer::Rejected(rejection) => {
                if let Some(connection) = self.remove(id) {
                    self.rejected(peer, purpose, rejection, &connection);
                }
            }
        }
    }

    fn rejected(&mut self, peer: usize, purpose: Purpose, rejection: Rejection, connection: &Connection) {
        if let (Rejection::Moved { to }, Purpose::Join) = (&rejection, purpose) {
            return self.dial(0, Purpose::Join, to.socket_addresses(), self.plan.deadline);
        }
        let at = connection.remote;
        let local = connection.local.map(|local| local.to_string());
        let how = match &rejection {
            Rejection::WrongPlace { here } => format!("rank {here} listens there, not rank {peer}"),
            _ => "it does not let this rank in".to_owned(),
        };
        if self.formation.second_root().is_some() {
            return self.second_root_answered(reason(&self.plan, peer, at, local, rejection));
        }
        let is_complete = matches!(rejection, Rejection::Complete { .. });
        match (reason(&self.plan, peer, at, local, rejection), self.dials.get_mut(&peer)) {
            (Some(error), Some(dial))
                if purpose == Purpose::Join
                    && is_complete
                    && (self.plan.is_elastic()
                        || self.now - dial.search.started() < self.plan.limits.earlier_job) =>
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

    /// Handles the answer of the first rank 0 to this second one. `reason` is why this one is not needed, if the
    /// first one said so.
    fn second_root_answered(&mut self, reason: Option<Error>) {
        let Some(otherwise) = self.formation.second_root().cloned() else { return };
        // Under a unique id, another answer is possible only if the id was used for another job.
        let counts = |error: &Error| self.plan.by_address || matches!(error, Error::DuplicateRank { .. });
        self.fail(&reason.filter(counts).unwrap_or(otherwise), None);
    }

    /// Handles the first frame on a connection that another process opened.
    fn on_hello(&mut self, id: ConnectionId, responder: &Responder, frame: &handshake::Frame) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match self.plan.key.verify(responder, frame) {
            Ok((hello, verified)) => self.admit(id, verified, &hello),
            Err(stranger) => {
                let remote = connection.remote;
                self.say([id], self.plan.key.refusal());
                tracing::info!(target: LOG, rank = self.plan.rank, %remote, why = %stranger, "refused a stranger");
                if let (HandshakeError::Unproven(why), Some(hello)) = (stranger, claim(frame)) {
                    let (rank, process) = (hello.from, hello.process);
                    let remedy = self.plan.secret_remedy();
                    let what =
                        format!("was refused: {why}; it says that it is rank {rank}, {process}{remedy}");
                    self.note_refusal(remote, what);
                }
            }
        }
    }

    /// Admits a process that has proved that it has the job's key, or answers why not.
    fn admit(&mut self, id: ConnectionId, verified: Verified, hello: &Hello) {
        if self.formation.directory().is_some() {
            return self.on_call(id, verified, hello);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let from = hello.process.at(connection.remote);
        let peer = hello.from as usize;
        let remote = connection.remote;
        let forms = self.awaits_all();
        let admitted = match self.formation.roster_mut() {
            Some(roster) => roster.admit(hello, &from).map(|()| self.plan.job.unwrap_or_default()),
            None => self.judge_latecomer(hello, &from).map_or_else(|| self.admit_peer(hello), Err),
        };
        let Refused { rejection, fatal } = match admitted {
            Err(refused) => refused,
            Ok(job) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.has_proved_itself();
                    if forms {
                        connection.phase = Phase::Member { rank: peer, joined: false, from };
                    }
                }
                self.say([id], verified.accept(&job));
                match forms {
                    true => self.tell_latecomer(id),
                    false => self.link_up(id, Link::new(peer, false)),
                }
                return;
            }
        };
        let rank = self.plan.rank;
        match &fatal {
            // This is logged before anybody hears of the error, which may end this process. A job that has formed may
            // only be about to end.
            Some(error) if forms => {
                tracing::error!(target: LOG, rank, %from, %error, "did not admit a member");
            }
            _ => {
                tracing::warn!(target: LOG, rank, %from, ?rejection, "did not admit a member");
            }
        }
        self.say([id], verified.reject(&rejection.to_bytes()));
        if matches!(rejection, Rejection::OtherJob { .. }) {
            let id = if hello.job == [0; 16] { "without an id" } else { "with another id" };
            let remedy = "if it is of this one, give all ranks the same MSCCLPP_JOB_ID";
            self.note_refusal(remote, format!("was refused: it is rank {peer} of a job {id}; {remedy}"));
        }
        if let Some(error) = fatal {
            self.fail(&error, None);
        }
    }

    /// Handles a member that withdraws its proof (S1): it waited too long for the answer, and tries another address.
    pub(super) fn proof_withdrawn(&mut self, id: ConnectionId) -> Result<(), Malformed> {
        let Some(Phase::Member { rank, joined: false, .. }) = self.connections.get(&id).map(|c| &c.phase)
        else {
            return Err(Malformed("a rank retired after it had joined"));
        };
        let rank = *rank;
        if let Some(roster) = self.formation.roster_mut() {
            roster.withdraw(rank);
        }
        self.remove(id);
        Ok(())
    }

    /// Returns the origin of another process that was admitted as the same rank. One process may come twice if its
    /// first connection has broken, which is noticed here later. So may a process that replaces one that is gone, if
    /// ranks may be replaced.
    pub(super) fn claim_of_another(&self, id: ConnectionId, rank: usize, from: &Origin) -> Option<Origin> {
        self.claims(id, rank).find(|claim| !self.may_follow(from, claim)).cloned()
    }

    /// Returns whether this rank was admitted on another connection too, for the same process or for one that it may
    /// replace.
    pub(super) fn claims_again(&self, id: ConnectionId, rank: usize, from: &Origin) -> bool {
        self.claims(id, rank).any(|claim| self.may_follow(claim, from))
    }

    /// Returns whether `next` may take the place of `first`: it is the same process, which has connected again, or ranks may
    /// be replaced.
    fn may_follow(&self, next: &Origin, first: &Origin) -> bool {
        self.plan.is_elastic() || next.process == first.process
    }

    /// Returns the origins of the other connections that were admitted as this rank.
    fn claims(&self, id: ConnectionId, rank: usize) -> impl Iterator<Item = &Origin> {
        // Usually there is none, and the search is skipped.
        let contested = self.formation.roster().filter(|roster| roster.is_contested());
        let others = contested.into_iter().flat_map(move |_| self.connections.iter());
        others.filter_map(move |(&other, connection)| match &connection.phase {
            Phase::Member { rank: same, from, .. } if *same == rank && other != id => Some(from),
            _ => None,
        })
    }

    /// Checks that a rank may have a link to this one. Returns the job's id, or why not.
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

/// Returns the hello of a rank to `peer`.
fn hello(plan: &Plan, peer: usize, purpose: Purpose, nonce: Nonce) -> Hello {
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
        process: plan.process.clone(),
        generation: plan.last_generation.unwrap_or(0),
    }
}

/// Returns the error of a rank that `peer` at `remote` refused. Returns `None` if another rank than the wanted one
/// listens there.
fn reason(
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
        Rejection::WrongPlace { .. } | Rejection::Moved { .. } => return None,
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
            let second = plan.process.at(local.unwrap_or_default()).to_string();
            Error::DuplicateRank { rank, first, second, address: remote }
        }
        Rejection::OtherJob { theirs } => Error::OtherJob { address: remote, ours: our_job(), theirs },
        Rejection::Complete { n_ranks } => {
            Error::JobComplete { address: remote, rank, n_ranks: n_ranks as usize }
        }
    })
}
