//! The distribution of the table of all ranks down the tree.
//!
//! Rank 0 tells each rank where its parent listens, and sends the table to its own two children alone. Each rank
//! sends it on to its children, so nobody writes it more than twice. A child may connect before its parent has the
//! table, or after: the later of the two events sends it.

use std::sync::Arc;

use mscclpp_net::wire::{Malformed, Reader, Wire};

use crate::job::connection::{Connection, Link, Phase};
use crate::job::{ConnectionId, Job};
use crate::protocol::frame::{self, Frame, Kind, MAX_PAYLOAD};
use crate::protocol::hello::Purpose;
use crate::protocol::table::{Place, Table, most_bytes};
use crate::protocol::tree;

impl Job {
    /// Ends the job if another process still claims to be a rank that is entered, and does not say more.
    pub(super) fn expire_claims(&mut self) {
        if self.formation.claims_until.is_none_or(|until| until > self.now) {
            return;
        }
        self.formation.claims_until = None;
        let claims = self.connections.values().filter_map(|c| match &c.phase {
            Phase::Member { rank, joined: false, from } => Some((*rank, from)),
            _ => None,
        });
        let roster = self.formation.roster();
        let twice =
            roster.and_then(|roster| claims.filter_map(|(rank, from)| roster.twice(rank, from)).next());
        if let Some(error) = twice {
            self.fail_as_one_came_twice(&error);
        }
    }

    pub(super) fn parent(&self) -> Option<usize> {
        tree::parent(self.plan.rank)
    }

    /// Begins to distribute the table at rank 0 if all ranks have come and no process has come again as a rank that
    /// is entered, because a connection of such a process may be about to end.
    pub(super) fn begin_tree_if_all_came(&mut self) {
        let Some(roster) = self.formation.roster().filter(|_| self.failed.is_none() && self.table.is_none())
        else {
            return;
        };
        let Some(bytes) = roster.table() else { return };
        let is_claim = |c: &Connection| matches!(c.phase, Phase::Member { joined: false, .. });
        if roster.is_contested() && self.connections.values().any(is_claim) {
            self.formation.claims_until.get_or_insert(self.now + self.plan.limits.claim);
            return;
        }
        self.formation.claims_until = None;
        let Ok(table) = Table::parse(bytes, 0, self.plan.n_ranks).map(Arc::new) else {
            unreachable!("what is encoded here can be parsed");
        };
        self.formation.progress_at = None;
        let member = |(&id, connection): (&ConnectionId, &Connection)| match connection.phase {
            Phase::Member { rank, joined: true, .. } => Some((id, rank)),
            _ => None,
        };
        let members: Vec<_> = self.connections.iter().filter_map(member).collect();
        let (children, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(_, rank)| tree::parent(*rank) == Some(0));
        for (id, rank) in others {
            let place = tree::parent(rank).map_or(&[][..], |parent| table.place(parent));
            self.say([id], frame::encode(Kind::Parent, place));
        }
        self.table = Some(table);
        for (id, peer) in children {
            self.link_up(id, Link::new(peer, false));
        }
    }

    /// Handles rank 0's message where the parent of this rank listens.
    pub(super) fn on_parent(&mut self, frame: &Frame) -> Result<(), Malformed> {
        let addresses = Place::parse(&frame.payload)?.socket_addresses();
        let Some(parent) = self.parent().filter(|&parent| parent > 0) else {
            return Err(Malformed("the parent of this rank is rank 0"));
        };
        if self.failed.is_some() || self.is_closing() {
            return Ok(());
        }
        self.formation.missing.clear();
        self.dial(parent, Purpose::Tree, addresses, self.plan.deadline);
        Ok(())
    }

    pub(super) fn on_table_frame(
        &mut self,
        id: ConnectionId,
        from: usize,
        frame: &Frame,
    ) -> Result<(), Malformed> {
        if self.parent() != Some(from) {
            return Err(Malformed("the table is not from the parent in the tree"));
        }
        if self.table.is_some() {
            // The table comes over a second connection to the parent.
            return Ok(());
        }
        let mut reader = Reader::new(&frame.payload);
        let last = reader.take::<bool>()?;
        let Some(link) = self.connections.get_mut(&id).and_then(Connection::link_mut) else { return Ok(()) };
        link.table.extend_from_slice(reader.rest());
        if link.table.len() > most_bytes(self.plan.n_ranks) {
            return Err(Malformed("a table is too long"));
        }
        if !last {
            return Ok(());
        }
        let bytes = std::mem::take(&mut link.table);
        self.table = Some(Arc::new(Table::parse(bytes, self.plan.rank, self.plan.n_ranks)?));
        self.formation.missing.clear();
        let is_child = |phase: &Phase| matches!(phase, Phase::Link(link) if self.is_child(link.peer));
        self.send_table(&self.connections_in(is_child));
        self.tree_progressed();
        Ok(())
    }

    /// Sends the table to children in the tree that have connected, if the table is there and the job has not formed.
    pub(super) fn send_table(&mut self, children: &[ConnectionId]) {
        let Some(table) = self.table.clone().filter(|_| !self.is_formed() && !children.is_empty()) else {
            return;
        };
        let mut chunks = table.bytes().chunks(MAX_PAYLOAD - 1).peekable();
        while let Some(chunk) = chunks.next() {
            let last = u8::from(chunks.peek().is_none());
            let part = frame::encode(Kind::Table, &[&[last], chunk].concat());
            self.say(children.iter().copied(), part);
        }
    }

    pub(super) fn is_child(&self, rank: usize) -> bool {
        tree::parent(rank) == Some(self.plan.rank)
    }
}
