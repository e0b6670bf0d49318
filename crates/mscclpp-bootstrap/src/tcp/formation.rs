//! How a job forms.
//!
//! 1. Every rank connects to rank 0, proves itself and says where it listens.
//! 2. When all have come, rank 0 sends everyone the table.
//! 3. Every rank connects to its parent in the tree (the children of rank 0 stay on the connection they have), and
//!    says `Ready` to it once all its children have said so.
//! 4. When rank 0's children are ready, `Go` travels down the tree, and rank 0 closes the other connections.
//!
//! Until then a rank that is lost ends the job, and so does one that leaves.

mod progress;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use crate::host::HostId;
use crate::protocol::frame::{self, Frame, Kind, MAX_PAYLOAD};
use crate::protocol::hello::Purpose;
use crate::protocol::roster::Roster;
use crate::protocol::table::{Entry, Table};
use crate::protocol::tree;
use crate::tcp::connection::{Link, Phase};
use crate::tcp::dialling::Dial;
use crate::tcp::formation::progress::FIRST_PROGRESS;
use crate::tcp::listening;
use crate::tcp::service::{Plan, Service};
use crate::{Error, LOG};
use mscclpp_net::socket::canonical;
use mscclpp_net::wire::{Malformed, Reader};
use mscclpp_net::{SystemCall, SystemError};
use mscclpp_os::waiting::LongWait;

/// How far the forming of the job has come.
pub(crate) struct Formation {
    /// At rank 0, while ranks are missing.
    roster: Option<Roster>,
    progress_at: Option<Instant>,
    /// The same at rank 0 once the job has formed.
    complete: Option<Roster>,
    /// At other ranks: where rank 0 may be, and what to tell it.
    join: Option<Join>,
    missing: Vec<usize>,
    /// Rank 0 has no descriptor left, of so many.
    full: Option<u32>,
    table: Vec<u8>,
    ready_children: HashSet<usize>,
    ready_sent: bool,
    formed_at: Option<Instant>,
    wait: Option<LongWait>,
}

/// How a rank joins.
pub(crate) struct Join {
    pub(crate) candidates: Vec<SocketAddr>,
    pub(crate) host: HostId,
    pub(crate) domain: HostId,
    /// The addresses to listen at and to send to the others; all if empty.
    pub(crate) listen_at: Vec<IpAddr>,
    /// Other addresses of this machine, to send to the others.
    pub(crate) others: Vec<IpAddr>,
}

impl Formation {
    pub(crate) fn of_root(roster: Roster) -> Self {
        Self { roster: Some(roster), ..Self::empty() }
    }

    pub(crate) fn of_member(join: Join) -> Self {
        Self { join: Some(join), ..Self::empty() }
    }

    fn empty() -> Self {
        Self {
            roster: None,
            progress_at: None,
            complete: None,
            join: None,
            missing: Vec::new(),
            full: None,
            table: Vec::new(),
            ready_children: HashSet::new(),
            ready_sent: false,
            formed_at: None,
            wait: None,
        }
    }

    pub(crate) fn formed_at(&self) -> Option<Instant> {
        self.formed_at
    }

    /// Rank 0's list of the job that has formed.
    pub(crate) fn complete_mut(&mut self) -> Option<&mut Roster> {
        self.complete.as_mut()
    }

    /// Rank 0's list, until the job has formed.
    pub(crate) fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    pub(crate) fn roster_mut(&mut self) -> Option<&mut Roster> {
        self.roster.as_mut()
    }

    /// The ranks that are missing, as far as known here.
    pub(crate) fn missing(&self) -> Vec<usize> {
        self.roster.as_ref().map_or_else(|| self.missing.clone(), Roster::missing)
    }

    pub(crate) fn wake_at(&self, plan: &Plan) -> Option<Instant> {
        if self.formed_at.is_some() {
            return None;
        }
        let log_at = self.wait.as_ref().and_then(LongWait::wake_at);
        self.progress_at.into_iter().chain(log_at).chain([plan.deadline]).min()
    }
}

impl Service {
    pub(crate) fn begin_formation(&mut self, now: Instant) {
        self.formation.wait = Some(LongWait::since(now, self.plan.log_after));
        match &self.formation.join {
            None => self.formation.progress_at = Some(now + FIRST_PROGRESS),
            Some(join) => {
                let dial = Dial::new(Purpose::Join, join.candidates.clone(), now, self.plan.deadline);
                self.dial(0, dial);
            }
        }
    }

    pub(crate) fn advance_formation(&mut self, now: Instant) {
        if self.formation.formed_at.is_some() || self.failed.is_some() {
            return;
        }
        if now >= self.plan.deadline {
            let error = Error::Timeout {
                operation: format!("initialising the bootstrap{}", self.formation.no_room()),
                after: self.plan.timeout,
                missing: self.formation.missing(),
                attempts: self.notes.clone(),
            };
            self.fail(&error, None);
            return;
        }
        self.log_formation(now);
        self.send_progress(now);
    }

    /// Rank 0 has admitted this rank, which now listens and says where.
    pub(crate) fn joined(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.phase = Phase::Root;
        self.root_at = Some(connection.remote);
        let local = connection.stream().local_addr();
        let Some(join) = self.formation.join.take() else { return };
        match self.listen_beside(local, &join) {
            Ok(entry) => {
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.outbox.push(frame::encode(Kind::Join, &entry.encode()));
                }
                self.mark_dirty(token);
            }
            Err(error) => self.fail(&error.into(), None),
        }
    }

    /// Listens beside the address of the connection to rank 0.
    fn listen_beside(&mut self, local: io::Result<SocketAddr>, join: &Join) -> Result<Entry, SystemError> {
        let listening = local.and_then(|local| listening::beside(canonical(local).ip(), join));
        let (listener, addresses) = listening.during("listening for other ranks")?;
        let port = listener.local_addr().during("listening for other ranks")?.port();
        self.set_listener(listener)?;
        Ok(Entry { host: join.host, domain: join.domain, port, addresses })
    }

    /// A frame from a rank that was admitted.
    pub(crate) fn on_member_frame(
        &mut self,
        token: u64,
        rank: usize,
        frame: &Frame,
    ) -> Result<(), Malformed> {
        match frame.kind {
            Kind::Notice => self.on_notice(token, frame),
            Kind::Retire => self.proof_withdrawn(token),
            // The notice of the failure is on its way to it.
            Kind::Join if self.failed.is_some() => Ok(()),
            Kind::Join => {
                let entry = Entry::parse(&frame.payload)?;
                let Some(Phase::Member { from, .. }) = self.connections.get(&token).map(|c| &c.phase) else {
                    return Ok(());
                };
                let from = from.clone();
                let other_claim = self.other_claim(token, rank);
                let Some(roster) = &mut self.formation.roster else { return Ok(()) };
                if let Some(Phase::Member { joined: joined @ false, .. }) =
                    self.connections.get_mut(&token).map(|c| &mut c.phase)
                {
                    *joined = true;
                } else {
                    return Err(Malformed("a rank joined twice on one connection"));
                }
                tracing::debug!(target: LOG, peer = rank, from, "a rank has joined");
                let entered = roster.enter(rank, entry, &from, other_claim.as_deref());
                let table = roster.table();
                match (entered, table) {
                    (Err(error), _) => {
                        tracing::error!(target: LOG, rank = self.plan.rank, %error, "a rank came twice");
                        self.fail(&error, None);
                    }
                    (Ok(()), Some(table)) => self.send_table(table)?,
                    (Ok(()), None) => {}
                }
                Ok(())
            }
            _ => Err(Malformed("a frame of a joining rank is out of place")),
        }
    }

    fn send_table(&mut self, bytes: Vec<u8>) -> Result<(), Malformed> {
        let mut parts = Vec::new();
        let mut chunks = bytes.chunks(MAX_PAYLOAD - 1).peekable();
        while let Some(chunk) = chunks.next() {
            let last = u8::from(chunks.peek().is_none());
            parts.push(Arc::new(frame::encode(Kind::Table, &[&[last], chunk].concat())));
        }
        self.table = Some(Arc::new(Table::parse(bytes, 0, self.plan.n_ranks)?));
        self.formation.progress_at = None;
        let mut children = Vec::new();
        let mut receivers = Vec::new();
        for (&token, connection) in &mut self.connections {
            let Phase::Member { rank, joined: true, .. } = connection.phase else { continue };
            for part in &parts {
                connection.outbox.push(Arc::clone(part));
            }
            receivers.push(token);
            if tree::parent(rank) == Some(0) {
                children.push((token, rank));
            }
        }
        receivers.into_iter().for_each(|token| self.mark_dirty(token));
        for (token, peer) in children {
            self.link_up(token, Link { peer, ours: false, retire_sent: false, retire_received: false });
        }
        Ok(())
    }

    /// A frame from rank 0, on the connection over which the job forms.
    pub(crate) fn on_root_frame(&mut self, token: u64, frame: &Frame) -> Result<(), Malformed> {
        let mut reader = Reader::new(&frame.payload);
        match frame.kind {
            Kind::Notice => self.on_notice(token, frame),
            Kind::Progress => self.formation.take_progress(frame),
            Kind::Table => {
                let last = reader.flag()?;
                self.formation.table.extend_from_slice(reader.rest());
                if last {
                    let bytes = std::mem::take(&mut self.formation.table);
                    let table = Table::parse(bytes, self.plan.rank, self.plan.n_ranks)?;
                    self.formation.missing.clear();
                    self.connect_to_parent(token, table);
                }
                Ok(())
            }
            Kind::Dismiss => {
                self.remove(token);
                Ok(())
            }
            _ => Err(Malformed("a frame of rank 0 is out of place")),
        }
    }

    fn connect_to_parent(&mut self, token: u64, table: Table) {
        let parent = tree::parent(self.plan.rank).unwrap_or(0);
        let addresses = table.addresses(parent);
        self.table = Some(Arc::new(table));
        if parent == 0 {
            self.link_up(token, Link { peer: 0, ours: true, retire_sent: false, retire_received: false });
        } else {
            let dial = Dial::new(Purpose::Tree, addresses, Instant::now(), self.plan.deadline);
            self.dial(parent, dial);
        }
    }

    pub(crate) fn on_tree_frame(&mut self, from: usize, kind: Kind) {
        let me = self.plan.rank;
        if kind == Kind::Ready && tree::parent(from) == Some(me) {
            self.formation.ready_children.insert(from);
            self.tree_progressed();
        } else if kind == Kind::Go && tree::parent(me) == Some(from) {
            self.go();
        }
    }

    /// Says `Ready` to the parent, or `Go` at rank 0, once all children have said `Ready`.
    pub(crate) fn tree_progressed(&mut self) {
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

    /// Sends a frame without a payload to a neighbour in the tree; `false` if it is not connected yet.
    fn send_empty(&mut self, rank: usize, kind: Kind) -> bool {
        let token = self
            .connections
            .iter()
            .find(|(_, c)| matches!(&c.phase, Phase::Link(link) if link.peer == rank))
            .map(|(&token, _)| token);
        let Some(token) = token else { return false };
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.outbox.push(frame::encode(kind, &[]));
        }
        self.mark_dirty(token);
        true
    }

    fn go(&mut self) {
        let Some(table) = &self.table else { return };
        if self.formation.formed_at.is_some() || self.failed.is_some() {
            return;
        }
        let table = Arc::clone(table);
        self.spare = None;
        self.formation.formed_at = Some(Instant::now());
        self.formation.complete = self.formation.roster.take();
        for child in tree::children(self.plan.rank, self.plan.n_ranks) {
            self.send_empty(child, Kind::Go);
        }
        let mut dismissed = Vec::new();
        for (&token, connection) in &mut self.connections {
            if matches!(connection.phase, Phase::Member { .. }) {
                connection.phase = Phase::Leaving;
                connection.outbox.push(frame::encode(Kind::Dismiss, &[]));
                dismissed.push(token);
            }
        }
        dismissed.into_iter().for_each(|token| self.mark_dirty(token));
        self.write_dirty();
        tracing::debug!(target: LOG, rank = self.plan.rank, n_ranks = self.plan.n_ranks, "the job has formed");
        self.shared.set_formed(table);
    }
}
