//! The simulated network. A connection keeps the order of its bytes; there is no order between connections.

use std::net::SocketAddr;
use std::time::Duration;

use mscclpp_net::dial::Failed;

use crate::wire::{End, Wire};
use crate::world::{Event, World};
use mscclpp_bootstrap::job::ConnectionId;

/// The shortest and longest time until a node that is gone, or out of reach, is noticed, as with `Liveness::PROMPT`.
const LEAST_SILENCE: Duration = Duration::from_millis(3500);
const MOST_SILENCE: Duration = Duration::from_millis(4300);

const CLOSED: &str = "it closed the connection";
const RESET: &str = "the connection broke: connection reset by peer";
const SILENT: &str = "the connection broke: connection timed out";

impl World {
    fn latency(&mut self) -> Duration {
        let (least, most) = (self.network.least_latency, self.network.most_latency);
        self.dice.between(least, most)
    }

    /// Returns whether two processes do not reach each other.
    fn apart(&self, one: usize, other: usize) -> bool {
        let parted = |parts: &Vec<bool>| parts.get(one) != parts.get(other);
        self.nodes[one].vanished || self.nodes[other].vanished || self.parted.as_ref().is_some_and(parted)
    }

    pub(super) fn dial(&mut self, node: usize, id: ConnectionId, address: SocketAddr) {
        self.last_wire += 1;
        let wire = self.last_wire;
        let dialler = End { node: Some(node), id: Some(id), ..End::default() };
        self.wires.insert(wire, Wire { ends: [dialler, End::default()], dead: false });
        self.take_wire(node, id, (wire, 0));
        let at = self.now + self.latency();
        self.schedule(at, Event::Syn { wire, address });
    }

    fn take_wire(&mut self, node: usize, id: ConnectionId, side: (u64, usize)) {
        let wires = &mut self.nodes[node].wires;
        wires.insert(id, side);
        self.most_wires[node] = self.most_wires[node].max(wires.len());
    }

    pub(super) fn syn(&mut self, wire: u64, address: SocketAddr) {
        let Some(dialler) = self.wires.get(&wire).and_then(|wire| wire.ends[0].node) else { return };
        let host = self.nodes.iter().position(|node| node.ip == address.ip());
        // Nobody answers for a node that is not there.
        let Some(host) = host.filter(|&host| !self.apart(dialler, host)) else { return };
        let answer = self.now + self.latency();
        let listener = self.listeners.get(&address).copied();
        if listener != Some(host) {
            return self.schedule(answer, Event::Refused { wire });
        }
        if let Some(wire) = self.wires.get_mut(&wire) {
            wire.ends[1].node = Some(host);
            wire.ends.iter_mut().for_each(|end| end.arrives = answer);
        }
        self.schedule(self.now, Event::Accept { wire });
        self.schedule(answer, Event::Established { wire });
    }

    pub(super) fn accept(&mut self, wire: u64, node: usize) {
        let Some(dialler) = self.wires.get(&wire).and_then(|wire| wire.ends[0].node) else { return };
        let from = SocketAddr::new(self.nodes[dialler].ip, 20_000 + (wire % 40_000) as u16);
        let (now, nonce) = (self.instant(), self.dice.nonce());
        let process = &mut self.nodes[node];
        let id = match (&mut process.job, &mut process.stranger) {
            (Some(job), _) => job.on_accepted(now, from, nonce),
            (None, Some(stranger)) => stranger.takes_in(),
            (None, None) => return,
        };
        self.take_wire(node, id, (wire, 1));
        if let Some(wire) = self.wires.get_mut(&wire) {
            wire.ends[1].id = Some(id);
        }
        self.stranger_connected(node, id);
    }

    pub(super) fn established(&mut self, wire: u64, node: usize) {
        let (now, nonce, local) =
            (self.instant(), self.dice.nonce(), SocketAddr::new(self.nodes[node].ip, 9));
        let Some(id) = self.id_of(wire, 0) else { return };
        if let Some(job) = &mut self.nodes[node].job {
            job.on_connected(now, id, local, nonce);
        }
        self.stranger_connected(node, id);
    }

    pub(super) fn refused(&mut self, wire: u64, node: usize) {
        let (now, id) = (self.instant(), self.id_of(wire, 0));
        if let (Some(id), Some(job)) = (id, &mut self.nodes[node].job) {
            job.on_dial_failed(now, id, Failed::Refused);
        }
        self.wires.remove(&wire);
    }

    fn id_of(&self, wire: u64, side: usize) -> Option<ConnectionId> {
        let end = &self.wires.get(&wire)?.ends[side];
        end.id.filter(|_| !end.closed)
    }

    /// Writes the pending bytes of a rank on a connection, as far as that takes them.
    pub(super) fn write(&mut self, node: usize, id: ConnectionId) {
        let now = self.instant();
        while let Some(&(wire, side)) = self.nodes[node].wires.get(&id) {
            let room = self
                .wires
                .get(&wire)
                .map_or(0, |wire| self.network.buffer.saturating_sub(wire.ends[side].under_way));
            let Some(job) = &mut self.nodes[node].job else { return };
            let pending = job.pending(id);
            if pending.is_empty() {
                return;
            }
            if room == 0 {
                if let Some(wire) = self.wires.get_mut(&wire) {
                    wire.ends[side].blocked = true;
                }
                return;
            }
            let most = pending.len().min(room);
            // The bytes are mostly whole, and sometimes cut anywhere.
            let cut = self.network.cuts_writes && self.dice.percent(20);
            let take = if cut { 1 + self.dice.below(most) } else { most };
            let bytes = pending[..take].to_vec();
            job.on_written(now, id, take);
            self.send(wire, side, bytes);
        }
    }

    pub(super) fn send(&mut self, wire: u64, side: usize, bytes: Vec<u8>) {
        let at = self.now + self.latency();
        let Some(found) = self.wires.get_mut(&wire) else { return };
        let end = &mut found.ends[side];
        end.arrives = end.arrives.max(at);
        end.under_way += bytes.len();
        let (at, epoch) = (end.arrives, end.epoch);
        if let Some(node) = end.node {
            self.written[node].frames += 1;
            self.written[node].bytes += bytes.len() as u64;
        }
        if !found.dead {
            self.schedule(at, Event::Bytes { wire, to: 1 - side, bytes, epoch });
        }
    }

    pub(super) fn bytes(&mut self, wire: u64, to: usize, node: usize, bytes: &[u8], epoch: u32) {
        let now = self.instant();
        let Some(found) = self.wires.get_mut(&wire).filter(|wire| !wire.dead) else { return };
        let sender = &mut found.ends[1 - to];
        sender.under_way = sender.under_way.saturating_sub(bytes.len());
        // Like real systems, this wakes a sender that waits for room only when a third of the buffer is free.
        let unblocked = sender.blocked && sender.under_way <= self.network.buffer / 3 * 2;
        if sender.epoch != epoch {
            return;
        }
        if unblocked {
            sender.blocked = false;
            self.schedule(self.now, Event::Writable { wire, side: 1 - to });
        }
        let Some(id) = self.id_of(wire, to) else {
            return self.reset(wire, 1 - to);
        };
        if let Some(job) = &mut self.nodes[node].job {
            job.on_bytes(now, id, bytes);
        }
        self.stranger_reads(node, id, bytes);
    }

    pub(super) fn writable(&mut self, wire: u64, side: usize, node: usize) {
        if let Some(id) = self.id_of(wire, side) {
            self.write(node, id);
        }
    }

    pub(super) fn finish(&mut self, node: usize, id: ConnectionId) {
        if let Some(&(wire, side)) = self.nodes[node].wires.get(&id) {
            self.send_end(wire, side, CLOSED);
        }
    }

    /// Reports to the other side, behind all bytes that are on their way, that nothing more comes.
    fn send_end(&mut self, wire: u64, side: usize, why: &'static str) {
        let at = self.now + self.latency();
        let Some(found) = self.wires.get_mut(&wire) else { return };
        let end = &mut found.ends[side];
        if !std::mem::replace(&mut end.finished, true) && !found.dead {
            let at = found.ends[side].arrives.max(at);
            found.ends[side].arrives = at;
            self.schedule(at, Event::End { wire, to: 1 - side, why });
        }
    }

    /// Closes one side. If it leaves bytes unread, the system may throw away the bytes that are still on their way to
    /// the other side.
    pub(super) fn close(&mut self, node: usize, id: ConnectionId, may_discard: bool) {
        let Some((wire, side)) = self.nodes[node].wires.remove(&id) else { return };
        let discard = may_discard && self.dice.percent(50);
        let Some(found) = self.wires.get_mut(&wire) else { return };
        let unread = found.ends[1 - side].under_way > 0;
        found.ends[side].closed = true;
        if found.ends[1 - side].closed {
            self.wires.remove(&wire);
            return;
        }
        if unread && discard {
            found.ends[side].epoch += 1;
            self.unheard.insert(node);
            self.reset(wire, 1 - side);
        } else {
            self.send_end(wire, side, CLOSED);
        }
    }

    /// Reports to a side that the connection has broken, behind all bytes that are on their way.
    fn reset(&mut self, wire: u64, to: usize) {
        let at = self.now + self.latency();
        let arrives = self.wires.get(&wire).map_or(at, |wire| wire.ends[1 - to].arrives);
        let at = at.max(arrives);
        self.schedule(at, Event::End { wire, to, why: RESET });
    }

    pub(super) fn ended(&mut self, wire: u64, to: usize, node: usize, why: &'static str) {
        let now = self.instant();
        let Some(id) = self.id_of(wire, to) else { return };
        // The end that was on its way was thrown away with the bytes before it, and the reset is reported instead.
        if why == CLOSED && self.wires[&wire].ends[1 - to].epoch != 0 {
            return;
        }
        if let Some(job) = &mut self.nodes[node].job {
            job.on_end(now, id, why);
        } else {
            self.close(node, id, false);
        }
    }

    /// Refuses data that arrives for a process that has ended, as its system does.
    pub(super) fn lost_on_the_dead(&mut self, event: &Event) {
        match event {
            Event::Bytes { wire, to, .. } => self.reset_if_there(*wire, 1 - to),
            Event::Accept { wire } => self.reset_if_there(*wire, 0),
            _ => {}
        }
    }

    fn reset_if_there(&mut self, wire: u64, to: usize) {
        let ends =
            self.wires.get(&wire).filter(|wire| !wire.dead).map(|wire| [0, 1].map(|end| wire.ends[end].node));
        if let Some([Some(one), Some(other)]) = ends
            && !self.apart(one, other)
        {
            self.reset(wire, to);
        }
    }

    /// Breaks a random connection between ranks.
    pub(super) fn break_wire(&mut self, which: usize) {
        let between_ranks: Vec<u64> = self
            .wires
            .iter()
            .filter(|(_, wire)| wire.ends.iter().all(|end| end.id.is_some() && !end.closed))
            .filter(|(_, wire)| {
                let rank = |end: &End| end.node.is_some_and(|node| self.nodes[node].job.is_some());
                wire.ends.iter().all(rank)
            })
            .map(|(&wire, _)| wire)
            .collect();
        if between_ranks.is_empty() {
            return;
        }
        let wire = between_ranks[which % between_ranks.len()];
        let ends: Vec<usize> = self.wires[&wire].ends.iter().filter_map(|end| end.node).collect();
        // Both sides may have been about to close the connection.
        self.last_fault = self.now;
        self.suspects.extend(ends);
        self.kill_wire(wire, Duration::ZERO, Duration::from_millis(50), RESET);
    }

    /// Breaks the connections between processes that do not reach each other any more.
    pub(super) fn cut_wires(&mut self) {
        let cut: Vec<u64> = self
            .wires
            .iter()
            .filter(|(_, wire)| match [0, 1].map(|end| wire.ends[end].node) {
                [Some(one), Some(other)] => self.apart(one, other),
                _ => false,
            })
            .map(|(&wire, _)| wire)
            .collect();
        for wire in cut {
            self.kill_wire(wire, LEAST_SILENCE, MOST_SILENCE, SILENT);
        }
    }

    fn kill_wire(&mut self, wire: u64, least: Duration, most: Duration, why: &'static str) {
        let Some(found) = self.wires.get_mut(&wire) else { return };
        if std::mem::replace(&mut found.dead, true) {
            return;
        }
        for to in 0..2 {
            let at = self.now + self.dice.between(least, most);
            self.schedule(at, Event::End { wire, to, why });
        }
    }
}
