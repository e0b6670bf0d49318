//! A job, as one of its ranks sees it: a state machine without sockets, threads, clocks and randomness.
//!
//! Events go in: new connections, bytes, ends of connections, commands of callers, the time. Each is a method that
//! begins with `on_`. Actions come out ([`Job::next_action`]): dial, write, close, deliver, and so on. They must be
//! carried out in their order; other events may be reported while some actions still wait. `tcp` does this with
//! sockets and a thread, and the crate `mscclpp-bootstrap-simulation` with a simulated network. `docs/design/job.md`
//! describes the states.
//!
//! The comments refer to these invariants:
//! - **S1** As soon as a rank has proved itself on a connection, the side that accepted it takes the end of that connection
//!   for the loss of the rank. The opener therefore gives up no connection on which it has sent its proof, and when
//!   it fails or leaves, it sends its notice or goodbye there too. Before the proof either side may end a connection
//!   at any time. A rank that joins can withdraw a proof that is not answered, by a retirement behind it, and opens
//!   no other connection before that.
//! - **S2** The end of a link without a goodbye or a retirement, both of which come in order after everything else on
//!   it, is the loss of the peer.
//! - **S3** The first failure is final. It is written to all proven connections before callers see it, so that a rank
//!   whose process ends on the error has passed it on.
//! - **S4** The same events at the same times lead to the same actions: no iteration is in a random order.

mod action;
mod admission;
mod clash;
mod connection;
mod dialling;
mod directory;
mod ending;
mod formation;
mod forming;
mod handshaking;
mod links;
mod peer;
mod plan;
mod progress;
mod roster;
mod spreading;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_net::dial::{Attempt, Failed};
use mscclpp_net::wire::Malformed;
use mscclpp_os::waiting::Repeated;

use crate::job::connection::{Connection, Phase};
use crate::job::dialling::{Dial, NO_ANSWER};
use crate::job::peer::Peer;
use crate::protocol::frame::Frame;
use crate::protocol::table::Table;
use crate::protocol::tree;
use crate::{Error, LOG};

pub use action::{Action, Command, ConnectionId, Written};
pub use directory::Directory;
pub use ending::LONGEST_LINGER;
pub use formation::Formation;
pub use plan::{Join, Limits, Plan};

/// The time for which a receive relies on the tree for news of its peer, before it opens a connection itself. Usually
/// the peer opens one meanwhile, to send.
pub const OPEN_AFTER: Duration = Duration::from_millis(100);
/// The most refused strangers that the message of a time-out names.
const NOTES: usize = 8;

pub struct Job {
    plan: Plan,
    /// The time of the current event.
    now: Instant,
    actions: VecDeque<Action>,
    connections: BTreeMap<ConnectionId, Connection>,
    last_id: ConnectionId,
    /// The connections that have not proved themselves, oldest first, and some that have meanwhile.
    unproven: VecDeque<ConnectionId>,
    peers: BTreeMap<usize, Peer>,
    dials: BTreeMap<usize, Dial>,
    formation: Formation,
    table: Option<Arc<Table>>,
    /// The address at which this rank found rank 0.
    root_at: Option<SocketAddr>,
    /// The neighbour from which failures above this rank come.
    uplink: Option<usize>,
    /// The time at which to look for another one after it left.
    relink_at: Option<Instant>,
    failed: Option<Error>,
    notes: Vec<Attempt>,
    /// The time at which this rank ends, if it leaves.
    closing: Option<Instant>,
    /// The time beyond which `closing` is not moved.
    latest_end: Instant,
    turned_away: Repeated,
}

impl Job {
    pub fn new(plan: Plan, formation: Formation, now: Instant) -> Self {
        let uplink = tree::parent(plan.rank);
        let mut job = Self {
            plan,
            now,
            actions: VecDeque::new(),
            connections: BTreeMap::new(),
            last_id: 0,
            unproven: VecDeque::new(),
            peers: BTreeMap::new(),
            dials: BTreeMap::new(),
            formation,
            table: None,
            root_at: None,
            uplink,
            relink_at: None,
            failed: None,
            notes: Vec::new(),
            closing: None,
            latest_end: now,
            turned_away: Repeated::default(),
        };
        job.begin_formation();
        job
    }

    // ---- Actions ---------------------------------------------------------------------------------------------------

    /// Returns the next action, if there is one.
    pub fn next_action(&mut self) -> Option<Action> {
        loop {
            let action = self.actions.pop_front()?;
            let Action::Write { id } = action else { return Some(action) };
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.asks_to_write = false;
            if !connection.outbox.is_empty() {
                return Some(action);
            }
            self.all_written(id);
        }
    }

    /// Returns the bytes to write next on a connection; empty if there are none now. The caller reports written bytes
    /// by [`on_written`](Self::on_written).
    pub fn pending(&self, id: ConnectionId) -> &[u8] {
        self.connections.get(&id).map_or(&[], |connection| connection.outbox.pending())
    }

    /// Returns whether the job still needs this connection.
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    /// Returns the time at which to call [`on_time`](Self::on_time), if nothing else happens.
    pub fn wake_at(&self) -> Option<Instant> {
        let attempts = match self.dials.is_empty() {
            true => None,
            false => {
                let searches = self.dials.values().map(|dial| dial.search.wake_at());
                searches.chain(self.connections.values().filter_map(|c| c.deadline)).min()
            }
        };
        let over = self.failed.is_some() || self.closing.is_some();
        let formation = if over { None } else { self.formation.wake_at(&self.plan) };
        [self.oldest_unproven(), attempts, self.closing, self.relink_at, formation]
            .into_iter()
            .flatten()
            .min()
    }

    // ---- Events ----------------------------------------------------------------------------------------------------

    pub fn on_time(&mut self, now: Instant) {
        self.set_time(now);
        self.expire_unproven();
        self.advance_dials();
        self.advance_formation();
        self.relink();
    }

    /// Event: a caller has given a command.
    pub fn on_command(&mut self, now: Instant, command: Command) {
        self.set_time(now);
        match command {
            Command::Send { stream, bytes, written } => self.send(stream, &bytes, written),
            Command::Open { peer } => self.open(peer),
            Command::Fail(error) => self.fail(&error, None),
            Command::Close => self.close(),
        }
    }

    /// Event: bytes have come.
    pub fn on_bytes(&mut self, now: Instant, id: ConnectionId, bytes: &[u8]) {
        self.set_time(now);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.reader.push(bytes);
        while let Some(connection) = self.connections.get_mut(&id) {
            let reader = &mut connection.reader;
            let outcome = match connection.phase {
                Phase::Unproven(_) | Phase::Greeting { .. } | Phase::Proved { .. } => {
                    reader.take().map(|frame| frame.map(|frame| self.on_handshake_frame(id, &frame)))
                }
                // Bytes on such a connection have no meaning any more.
                Phase::Connecting { .. } | Phase::Abandoned { .. } | Phase::Leaving => {
                    reader.take::<u8>().map(|frame| frame.map(drop))
                }
                Phase::Member { .. } | Phase::Caller(_) | Phase::Root | Phase::Link(_) => {
                    reader.take().and_then(|frame| frame.map(|frame| self.on_frame(id, frame)).transpose())
                }
            };
            match outcome {
                Ok(Some(())) => {}
                Ok(None) => return,
                Err(error) => self.end(id, &format!("it broke the protocol: {error}")),
            }
        }
    }

    /// Event: this many of the [`pending`](Self::pending) bytes were written.
    pub fn on_written(&mut self, now: Instant, id: ConnectionId, bytes: usize) {
        self.set_time(now);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(written) = connection.outbox.advance(bytes) {
            self.actions.push_back(Action::Sent(written));
        }
        let (is_link, is_empty) = (matches!(connection.phase, Phase::Link(_)), connection.outbox.is_empty());
        if is_link {
            self.linger();
        }
        if is_empty {
            self.all_written(id);
        }
    }

    /// Event: a connection has ended, or broken. Bytes that came before must be reported first.
    pub fn on_end(&mut self, now: Instant, id: ConnectionId, why: &str) {
        self.set_time(now);
        self.end(id, why);
    }

    fn set_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    // ---- Connections -----------------------------------------------------------------------------------------------

    /// Adds a connection.
    fn enter(&mut self, connection: Connection) -> ConnectionId {
        self.last_id += 1;
        self.connections.insert(self.last_id, connection);
        self.last_id
    }

    /// Removes a connection and closes it.
    fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        self.actions.push_back(Action::Close { id });
        Some(connection)
    }

    /// Queues an action to write on this connection, whether or not something is left to write.
    fn queue_write(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !matches!(connection.phase, Phase::Connecting { .. })
            && !std::mem::replace(&mut connection.asks_to_write, true)
        {
            self.actions.push_back(Action::Write { id });
        }
    }

    /// Queues a frame on each of these connections.
    fn say(&mut self, ids: impl IntoIterator<Item = ConnectionId>, frame: impl Into<Arc<Vec<u8>>>) {
        let frame = frame.into();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.outbox.push(Arc::clone(&frame));
                self.queue_write(id);
            }
        }
    }

    fn connections_in(&self, phase: impl Fn(&Phase) -> bool) -> Vec<ConnectionId> {
        self.connections.iter().filter(|(_, c)| phase(&c.phase)).map(|(&id, _)| id).collect()
    }

    fn all_written(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if matches!(connection.phase, Phase::Leaving) {
            self.remove(id);
        } else if (self.closing.is_some() && !connection.is_unproven()) || connection.is_retired() {
            // The connection is read until the other side has finished too: closing it with bytes unread, or to come,
            // would make the system throw away bytes that are still on their way to the other side.
            if !std::mem::replace(&mut connection.finished_writing, true) {
                self.actions.push_back(Action::FinishWriting { id });
            }
        }
    }

    /// Handles the end of a connection. The meaning depends on its phase.
    fn end(&mut self, id: ConnectionId, why: &str) {
        let Some(connection) = self.remove(id) else { return };
        let remote = connection.remote;
        match connection.phase {
            Phase::Greeting { peer, .. } | Phase::Proved { peer, .. } if why != NO_ANSWER => {
                self.attempt_failed(peer, remote, Failed::Ended(why.to_owned()));
            }
            Phase::Connecting { peer, .. }
            | Phase::Greeting { peer, .. }
            | Phase::Proved { peer, .. }
            | Phase::Abandoned { peer } => {
                self.attempt_failed(peer, remote, Failed::Other(why.to_owned()));
            }
            Phase::Unproven(_) => {
                tracing::info!(target: LOG, rank = self.plan.rank, %remote, why, "dropped a connection of a stranger");
            }
            Phase::Member { rank, joined: false, from } if self.claims_again(id, rank, &from) => {
                self.begin_tree_if_all_came();
            }
            // By S1, this also holds for a member that has sent nothing since its proof.
            Phase::Member { rank, .. } if !self.is_formed() => self.peer_lost(rank, why, id),
            Phase::Caller(caller) => self.caller_left(&caller),
            Phase::Root if !self.is_formed() => self.peer_lost(0, why, id),
            Phase::Link(link) => self.link_ended(&link, id, why),
            Phase::Member { .. } | Phase::Root | Phase::Leaving => {}
        }
    }

    fn on_frame(&mut self, id: ConnectionId, frame: Frame) -> Result<(), Malformed> {
        match self.connections.get(&id).map(|c| &c.phase) {
            Some(Phase::Member { rank, .. }) => self.on_member_frame(id, *rank, &frame),
            Some(Phase::Caller(_)) => self.on_caller_frame(id, &frame),
            Some(Phase::Root) => self.on_root_frame(id, &frame),
            Some(Phase::Link(link)) => self.on_link_frame(id, link.peer, frame),
            _ => Ok(()),
        }
    }

    fn is_formed(&self) -> bool {
        self.formation.formed_at().is_some()
    }

    /// Logs how a stranger was refused, at once, because another rank's end may be this one's before its time is up.
    /// Also keeps it for the message of a time-out. A stranger that comes again, each time from another port, is
    /// named once.
    fn note_refusal(&mut self, address: SocketAddr, outcome: String) {
        let known = |note: &Attempt| note.address.ip() == address.ip() && note.outcome == outcome;
        if self.notes.len() < NOTES && !self.notes.iter().any(known) {
            tracing::error!(target: LOG, rank = self.plan.rank, %address, "{outcome}");
            self.notes.push(Attempt { address, outcome });
        }
    }
}

#[cfg(test)]
pub mod tests;
