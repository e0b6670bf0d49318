//! Connections between ranks: messages, goodbyes, and the repair of the tree after a rank has left.
//!
//! A connection is opened when there is something to send for the first time, or something is waited for, and serves
//! both directions. If two ranks open one at the same time, they have two: each then sends a last frame on the one
//! that the higher rank opened and keeps to the other. A rank that tried a second address, because its proof was not
//! answered at the first, may have two connections of its own: both are used. Messages carry numbers, so their order
//! does not depend on the connection, and none is lost in the change.

use std::time::Duration;

use crate::inbox::Stream;
use crate::job::Job;
use crate::job::action::{Action, ConnectionId, Written};
use crate::job::connection::{Connection, Link, Phase};
use crate::protocol::frame::{self, Frame, Kind};
use crate::protocol::hello::Purpose;
use crate::protocol::message;
use crate::protocol::notice;
use crate::protocol::tree;
use crate::{Error, LOG};
use mscclpp_net::wire::{Malformed, Reader};

/// The time after which a rank counts as having left if nobody listens at any of its addresses and nothing was heard
/// of its death.
const GRACE: Duration = Duration::from_secs(1);
/// The delay before a rank whose parent in the tree has left looks for another. In a job that is ending, all have
/// left by then.
const RELINK_DELAY: Duration = Duration::from_millis(500);

impl Job {
    pub(super) fn send(&mut self, stream: Stream, bytes: &[u8], written: Option<Written>) {
        let peer = self.peers.entry(stream.peer).or_default();
        if self.failed.is_some() || peer.departed {
            return;
        }
        let frames = message::frames(stream.channel, stream.tag, peer.sent, bytes);
        peer.sent += 1;
        match peer.sender {
            Some(id) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.outbox.push_message(frames, written);
                    self.queue_write(id);
                }
            }
            None => {
                peer.waiting.push_back((frames, written));
                self.open(stream.peer);
            }
        }
    }

    /// Makes sure that there is a connection to a rank, or that one is being opened.
    pub(super) fn open(&mut self, rank: usize) {
        let peer = self.peers.entry(rank).or_default();
        if !peer.links.is_empty()
            || peer.departed
            || self.failed.is_some()
            || self.is_closing()
            || self.dials.contains_key(&rank)
        {
            return;
        }
        let Some(table) = &self.table else { return };
        let mut candidates = table.addresses(rank);
        if let (0, Some(address)) = (rank, self.root_at) {
            candidates.retain(|a| *a != address);
            candidates.insert(0, address);
        }
        self.dial(rank, Purpose::Peer, candidates, self.now + self.plan.timeout);
    }

    /// Returns whether a rank has not left, as far as is known. If nothing is known, a connection to it is opened.
    pub(super) fn is_here(&mut self, rank: usize) -> bool {
        if rank == self.plan.rank {
            return true;
        }
        self.open(rank);
        self.peers.get(&rank).is_some_and(|peer| !peer.links.is_empty() && peer.farewell.is_none())
    }

    pub(super) fn link_up(&mut self, id: ConnectionId, link: Link) {
        let rank = link.peer;
        tracing::debug!(target: LOG, rank = self.plan.rank, peer = rank, ours = link.ours, "connected");
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = Phase::Link(link);
        }
        self.tell_latecomer(id);
        if self.dials.get(&rank).is_some_and(|dial| dial.purpose == Purpose::Peer) {
            // The search ends. If the rank leaves now, nobody listens there, while messages that it sent are still to
            // come.
            self.dials.remove(&rank);
            self.give_up_attempts(Some(rank));
        }
        if self.is_closing() && self.failed.is_none() {
            // The connection was accepted just before this rank stopped listening, so the goodbyes to the others did
            // not reach it.
            self.say_goodbye(id, rank);
        }
        let peer = self.peers.entry(rank).or_default();
        peer.links.push(id);
        if peer.sender.is_none() {
            self.send_on(rank, id);
        } else {
            self.retire_surplus(rank);
        }
        self.queue_write(id);
        if self.is_child(rank) {
            self.send_table(&[id]);
        }
        self.tree_progressed();
    }

    fn send_on(&mut self, rank: usize, id: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        peer.sender = Some(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        for (frames, written) in peer.waiting.drain(..) {
            connection.outbox.push_message(frames, written);
        }
        self.queue_write(id);
    }

    /// Retires one of two connections that both sides opened at once: the one that the higher rank opened.
    fn retire_surplus(&mut self, rank: usize) {
        let Some(peer) = self.peers.get(&rank) else { return };
        let first_opened_by = |we: bool| {
            let mut links = peer.links.iter().copied();
            links.find(|id| match self.connections.get(id).map(|c| &c.phase) {
                Some(Phase::Link(link)) => link.ours == we,
                _ => false,
            })
        };
        let lower_is_us = self.plan.rank < rank;
        if let (Some(keep), Some(surplus)) = (first_opened_by(lower_is_us), first_opened_by(!lower_is_us)) {
            self.send_on(rank, keep);
            self.retire(surplus);
        }
    }

    fn retire(&mut self, id: ConnectionId) {
        let Some(link) = self.connections.get_mut(&id).and_then(Connection::link_mut) else { return };
        if link.retire_sent {
            return;
        }
        link.retire_sent = true;
        self.say([id], frame::encode(Kind::Retire, &[]));
    }

    pub(super) fn on_link_frame(
        &mut self,
        id: ConnectionId,
        rank: usize,
        frame: Frame,
    ) -> Result<(), Malformed> {
        match frame.kind {
            Kind::Message | Kind::Rest => {
                let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
                let credit = connection.intake.take(frame.payload.len());
                // Nothing may follow this side's goodbye.
                if let (Some(credit), None) = (credit, self.closing) {
                    connection.outbox.push_urgent(credit);
                    self.queue_write(id);
                }
                let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
                if let Some(message) = connection.assembler.push(frame)? {
                    let peer = self.peers.entry(rank).or_default();
                    for due in peer.incoming.push(message)? {
                        let stream = Stream { peer: rank, channel: due.channel, tag: due.tag };
                        self.actions.push_back(Action::Deliver { stream, bytes: due.bytes });
                    }
                    self.leave_if_done(rank);
                }
            }
            Kind::Credit => {
                let credit = Reader::new(&frame.payload).take()?;
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.outbox.credit(credit);
                    self.queue_write(id);
                }
            }
            Kind::Goodbye => {
                let count = Reader::new(&frame.payload).take()?;
                self.peers.entry(rank).or_default().farewell = Some(count);
                self.remove_link(id, rank);
                self.leave_if_done(rank);
                self.look_again(rank);
            }
            Kind::Retire => {
                if let Some(link) = self.connections.get_mut(&id).and_then(Connection::link_mut) {
                    link.retire_received = true;
                }
                if let Some(peer) = self.peers.get_mut(&rank)
                    && peer.sender == Some(id)
                {
                    // The handshake of the other connection may not be complete on this side; until then messages
                    // wait.
                    peer.sender = None;
                    if let Some(&other) = peer.links.iter().find(|&&t| t != id) {
                        self.send_on(rank, other);
                    }
                }
                self.retire(id);
                // If this side retired first, it can finish writing now.
                self.queue_write(id);
            }
            Kind::Notice => self.on_notice(id, &frame)?,
            Kind::Ready | Kind::Go => self.on_tree_frame(rank, frame.kind),
            Kind::Table => self.on_table_frame(id, rank, &frame)?,
            _ => return Err(Malformed("a frame is out of place between ranks")),
        }
        Ok(())
    }

    pub(super) fn on_notice(&mut self, id: ConnectionId, frame: &Frame) -> Result<(), Malformed> {
        let error = notice::parse(&frame.payload)?;
        self.fail(&error, Some(id));
        Ok(())
    }

    fn remove_link(&mut self, id: ConnectionId, rank: usize) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.links.retain(|&t| t != id);
            if peer.sender == Some(id) {
                peer.sender = peer.links.first().copied();
            }
        }
        self.remove(id);
    }

    /// Lets a rank leave that has said goodbye, once everything it sent before has arrived, on whichever connection.
    fn leave_if_done(&mut self, rank: usize) {
        let Some(peer) = self.peers.get(&rank) else { return };
        if peer.farewell.is_some_and(|count| peer.incoming.delivered() >= count) {
            self.peer_left(rank, &Error::PeerClosed { rank });
        }
    }

    fn peer_left(&mut self, rank: usize, error: &Error) {
        let peer = self.peers.entry(rank).or_default();
        if std::mem::replace(&mut peer.departed, true) {
            return;
        }
        tracing::debug!(target: LOG, rank = self.plan.rank, peer = rank, "a rank has left");
        peer.waiting.clear();
        // Without the search, nobody would watch the deadlines of its attempts.
        self.dials.remove(&rank);
        self.give_up_attempts(Some(rank));
        self.actions.push_back(Action::Gone { peer: rank, error: error.clone() });
        if self.uplink == Some(rank) {
            self.uplink = None;
            self.relink_at = Some(self.now + RELINK_DELAY);
        }
    }

    pub(super) fn link_ended(&mut self, link: &Link, id: ConnectionId, why: &str) {
        let Some(peer) = self.peers.get_mut(&link.peer) else { return };
        peer.links.retain(|&t| t != id);
        if peer.farewell.is_some() && peer.links.is_empty() {
            self.peer_left(link.peer, &Error::PeerClosed { rank: link.peer });
            return;
        }
        if link.retire_received {
            return self.look_again(link.peer);
        }
        if peer.departed || peer.farewell.is_some() {
            return;
        }
        self.peer_lost(link.peer, why, id);
    }

    /// Opens a new connection to a rank after one of several has ended. The other side may have taken a connection
    /// for a link while this side had not heard the answer to its proof yet. If none is left, callers would wait for
    /// ever for the messages on it. So a new one is opened: either the rank turns out to have left, or it learns that
    /// the other connection has ended.
    pub(super) fn look_again(&mut self, rank: usize) {
        let proved = |c: &Connection| matches!(c.phase, Phase::Proved { peer, .. } if peer == rank);
        let known = self.peers.contains_key(&rank) && self.is_formed();
        if known && !self.connections.values().any(proved) {
            self.open(rank);
        }
    }

    /// Lets a rank count as having left if no address of it answers for long enough.
    pub(super) fn consider_gone(&mut self, rank: usize) {
        let Some(dial) = self.dials.get(&rank) else { return };
        let refused = dial.purpose == Purpose::Peer && dial.search.all_refused();
        if refused && self.now >= dial.search.started() + GRACE {
            self.peer_left(rank, &Error::PeerClosed { rank });
        }
    }

    /// Connects to a rank above in place of one that has left, so that news of a failure still reaches everybody: the
    /// nearest ancestor that has not left, or else the lowest rank that has not. Numbers fall along these
    /// connections, so they form no circle, and only the lowest rank of all has none: they connect all ranks.
    pub(super) fn relink(&mut self) {
        if self.relink_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.relink_at = None;
        if self.failed.is_some() || self.is_closing() {
            return;
        }
        let me = self.plan.rank;
        let is_there = |rank: &usize| !self.peers.get(rank).is_some_and(|peer| peer.departed);
        let uplink = tree::ancestors(me).find(is_there).or_else(|| (0..me).find(is_there));
        self.uplink = uplink;
        if let Some(rank) = uplink {
            self.open(rank);
        }
    }
}
