//! The formation of a job.
//!
//! 1. Every rank connects to rank 0, proves itself and says where it listens.
//! 2. When all have come, rank 0 tells every rank where its parent in the tree listens.
//! 3. Every rank connects to its parent (the children of rank 0 stay on the connection they have), which sends it the
//!    table. A rank says `Ready` to its parent once it has the table and all its children have said so.
//! 4. When rank 0's children are ready, `Go` travels down the tree, and rank 0 closes the other connections.
//!
//! Until then the loss or the departure of a rank ends the job.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use mscclpp_net::socket::canonical;
use mscclpp_net::wire::{Malformed, Wire};
use mscclpp_os::waiting::LongWait;

use crate::job::Job;
use crate::job::action::{Action, ConnectionId};
use crate::job::connection::{Link, Phase};
use crate::job::formation::Stage;
use crate::job::progress::FIRST_PROGRESS;
use crate::job::roster::Roster;
use crate::protocol::frame::{self, Frame, Kind};
use crate::protocol::hello::{Origin, Purpose};
use crate::protocol::table::{Entry, Place};
use crate::protocol::tree;
use crate::{Error, LOG};

impl Job {
    pub(super) fn begin_formation(&mut self) {
        self.formation.wait = Some(LongWait::since(self.now, self.plan.log_after));
        let (candidates, deadline) = match &self.formation.stage {
            Stage::Searching(join) => (join.candidates.clone(), self.plan.deadline),
            Stage::SecondRoot(place, _) => {
                (vec![*place], self.plan.deadline.min(self.now + self.plan.limits.second_root))
            }
            Stage::Directory(_) => return,
            _ => {
                self.formation.progress_at = Some(self.now + FIRST_PROGRESS);
                return;
            }
        };
        self.dial(0, Purpose::Join, candidates, deadline);
    }

    pub(super) fn advance_formation(&mut self) {
        if self.is_formed() || self.failed.is_some() {
            return;
        }
        if self.now >= self.plan.deadline {
            if self.formation.directory().is_some() {
                return self.close();
            }
            let error = Error::Timeout {
                operation: format!("initialising the bootstrap{}", self.formation.no_room()),
                after: self.plan.timeout,
                missing: self.formation.missing(),
                attempts: self.notes.clone(),
            };
            self.fail(&error, None);
            return;
        }
        self.expire_claims();
        self.log_formation();
        self.send_progress();
    }

    /// Begins to listen, after rank 0 has admitted this rank.
    pub(super) fn joined(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.phase = Phase::Root;
        self.root_at = Some(connection.remote);
        let local = connection.local.map_or(connection.remote, canonical).ip();
        self.formation.stage = match std::mem::replace(&mut self.formation.stage, Stage::Joined) {
            Stage::Searching(join) => Stage::Listening(id, join),
            other => other,
        };
        self.actions.push_back(Action::Listen { local });
    }

    /// Event: this rank listens at these addresses, or cannot. It tells rank 0.
    pub fn on_listening(&mut self, now: Instant, at: Result<(u16, Vec<IpAddr>), Error>) {
        self.set_time(now);
        let (port, addresses) = match at {
            Ok(at) => at,
            Err(error) => return self.fail(&error, None),
        };
        let Stage::Listening(id, join) = &self.formation.stage else { return };
        let place = Place { port, addresses };
        let (id, entry) = (*id, Entry { host: join.host, domain: join.domain, place });
        self.formation.stage = Stage::Joined;
        self.say([id], frame::encode(Kind::Join, &entry.to_bytes()));
        if self.plan.rank == 0 {
            self.become_root(id, entry);
        }
    }

    /// Begins to collect ranks, after the process that made the id was told where this rank 0 listens.
    fn become_root(&mut self, directory: ConnectionId, root: Entry) {
        if let Some(connection) = self.connections.get_mut(&directory) {
            connection.phase = Phase::Leaving;
        }
        let address = root.place.socket_addresses().first().map_or_else(String::new, ToString::to_string);
        self.formation.roster = Some(Roster::new(&self.plan, address, root));
        self.formation.stage = Stage::Collecting;
        self.formation.progress_at = Some(self.now + FIRST_PROGRESS);
    }

    /// Handles a frame from a rank that was admitted.
    pub(super) fn on_member_frame(
        &mut self,
        id: ConnectionId,
        rank: usize,
        frame: &Frame,
    ) -> Result<(), Malformed> {
        match frame.kind {
            Kind::Notice => self.on_notice(id, frame),
            Kind::Retire => self.proof_withdrawn(id),
            // The notice of the failure is on its way to that rank.
            Kind::Join if self.failed.is_some() => Ok(()),
            Kind::Join => {
                let entry = Entry::parse(&frame.payload)?;
                let connection = self.connections.get_mut(&id);
                if let Some(Phase::Member { joined, from, .. }) = connection.map(|c| &mut c.phase)
                    && self.formation.roster().is_some()
                {
                    if std::mem::replace(joined, true) {
                        return Err(Malformed("a rank joined twice on one connection"));
                    }
                    let from = from.clone();
                    self.has_joined(id, rank, entry, from);
                }
                Ok(())
            }
            _ => Err(Malformed("a frame of a joining rank is out of place")),
        }
    }

    fn has_joined(&mut self, id: ConnectionId, rank: usize, entry: Entry, from: Origin) {
        tracing::debug!(target: LOG, peer = rank, %from, "a rank has joined");
        let other_claim = self.claim_of_another(id, rank, &from);
        let Some(roster) = self.formation.roster_mut() else { return };
        match roster.enter(rank, entry, from, other_claim.as_ref()) {
            Err(error) => self.fail_as_one_came_twice(&error),
            Ok(()) => self.begin_tree_if_all_came(),
        }
    }

    pub(super) fn fail_as_one_came_twice(&mut self, error: &Error) {
        tracing::error!(target: LOG, rank = self.plan.rank, %error, "a rank came twice");
        self.fail(error, None);
    }

    /// Handles a frame from rank 0, on the connection over which the job forms.
    pub(super) fn on_root_frame(&mut self, id: ConnectionId, frame: &Frame) -> Result<(), Malformed> {
        match frame.kind {
            Kind::Notice => self.on_notice(id, frame),
            Kind::Progress => self.formation.take_progress(frame),
            Kind::Parent => self.on_parent(frame),
            // Only the children of rank 0 get the table from it.
            Kind::Table if self.parent() == Some(0) => {
                self.link_up(id, Link::new(0, true));
                self.on_table_frame(id, 0, frame)
            }
            Kind::Dismiss => {
                self.remove(id);
                Ok(())
            }
            _ => Err(Malformed("a frame of rank 0 is out of place")),
        }
    }

    pub(super) fn on_tree_frame(&mut self, from: usize, kind: Kind) {
        let me = self.plan.rank;
        if kind == Kind::Ready && tree::parent(from) == Some(me) {
            self.formation.ready_children.insert(from);
            self.tree_progressed();
        } else if kind == Kind::Go && tree::parent(me) == Some(from) {
            self.go();
        }
    }

    /// Sends `Ready` to the parent, or `Go` at rank 0, once all children have sent `Ready`.
    pub(super) fn tree_progressed(&mut self) {
        let (me, n) = (self.plan.rank, self.plan.n_ranks);
        let below = tree::children(me, n).all(|child| self.formation.ready_children.contains(&child));
        if self.formation.ready_sent || self.table.is_none() || !below {
            return;
        }
        match tree::parent(me) {
            None => {
                self.formation.ready_sent = true;
                self.go();
            }
            Some(parent) => {
                if self.send_empty(parent, Kind::Ready) {
                    self.formation.ready_sent = true;
                }
            }
        }
    }

    /// Sends a frame without a payload to a neighbour in the tree. Returns `false` if it is not connected yet.
    fn send_empty(&mut self, rank: usize, kind: Kind) -> bool {
        let links = self.connections_in(|phase| matches!(phase, Phase::Link(link) if link.peer == rank));
        let first = links.into_iter().next();
        self.say(first, frame::encode(kind, &[]));
        first.is_some()
    }

    fn go(&mut self) {
        let Some(table) = &self.table else { return };
        if self.is_formed() || self.failed.is_some() {
            return;
        }
        let table = Arc::clone(table);
        self.formation.stage = Stage::Formed { at: self.now };
        for child in tree::children(self.plan.rank, self.plan.n_ranks) {
            self.send_empty(child, Kind::Go);
        }
        let dismissed = self.connections_in(|phase| matches!(phase, Phase::Member { .. }));
        for id in &dismissed {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.phase = Phase::Leaving;
            }
        }
        self.say(dismissed, frame::encode(Kind::Dismiss, &[]));
        tracing::debug!(target: LOG, rank = self.plan.rank, n_ranks = self.plan.n_ranks, "the job has formed");
        self.actions.push_back(Action::Formed(table));
    }
}
