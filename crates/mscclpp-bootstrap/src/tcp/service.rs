//! The one thread of a rank: it owns the rank's sockets and moves all bytes.
//!
//! Callers hand it commands through a queue and an eventfd, and find what arrives in the rank's inbox. It never blocks
//! but in `EventLoop::wait`, so no peer and no stranger can hold it up.
//!
//! Invariants that the comments refer to:
//! - **S1** For the side that was connected to, a connection is a rank's from the proof of that rank on: its end is then
//!   that of a link. The opener therefore gives up no connection on which it has sent its proof, and when it fails or
//!   leaves, it sends its notice or goodbye there too. Before the proof either side may end a connection at any time. A
//!   rank that joins can withdraw a proof that is not answered, by a retirement behind it, and has no other meanwhile.
//! - **S2** The end of a link without a goodbye or a retirement, both of which come in order after all else on it, is the
//!   loss of the peer.
//! - **S3** The first failure is final. It is written to all proven connections before callers see it, so that a rank
//!   whose process ends on the error has passed it on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::protocol::frame::Frame;
use crate::protocol::hello::{JobId, LaunchedJob};
use crate::protocol::key::JobKey;
use crate::protocol::table::Table;
use crate::tcp::connection::{Connection, Phase};
use crate::tcp::dialling::Dial;
use crate::tcp::formation::Formation;
use crate::tcp::links::Peer;
use crate::tcp::shared::{Command, Shared};
use crate::{Error, LOG};
use mscclpp_net::dial::{Attempt, Failed};
use mscclpp_net::event_loop::{EventLoop, Interest, LISTENER, Ready};
use mscclpp_net::wire::Malformed;
use mscclpp_net::{Report, SystemError};
use mscclpp_os::waiting::Repeated;

/// Bytes taken from a connection at a time.
const SCRATCH: usize = 16 * 1024;
/// How many refused strangers are named in the message of a time-out.
const NOTES: usize = 8;

/// What a rank knows when it starts.
pub(crate) struct Plan {
    pub(crate) rank: usize,
    pub(crate) n_ranks: usize,
    pub(crate) key: JobKey,
    /// Not known yet by a rank that was given an address.
    pub(crate) job: Option<JobId>,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// The job was named by an address that another job may have been given too.
    pub(crate) by_address: bool,
    /// What the launcher calls the job, if it was named by an address.
    pub(crate) launched: Option<LaunchedJob>,
    /// After which time it is first logged who is waited for.
    pub(crate) log_after: Duration,
}

impl Plan {
    /// What to do if keys differ, behind a semicolon. Nothing if the job was named by a unique id, which has its key.
    pub(crate) fn secret_remedy(&self) -> &'static str {
        match self.by_address {
            true => "; give all ranks the same MSCCLPP_BOOTSTRAP_SECRET, or none of them one",
            false => "",
        }
    }
}

/// The state of a rank's thread.
pub(crate) struct Service {
    pub(crate) plan: Plan,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: EventLoop<Command>,
    pub(crate) listener: Option<TcpListener>,
    pub(crate) connections: HashMap<u64, Connection>,
    pub(crate) peers: HashMap<usize, Peer>,
    pub(crate) dials: HashMap<usize, Dial>,
    pub(crate) formation: Formation,
    pub(crate) table: Option<Arc<Table>>,
    /// Where this rank found rank 0.
    pub(crate) root_at: Option<SocketAddr>,
    /// The neighbour that failures above this rank come from, and when to look for another after it left.
    pub(crate) uplink: Option<usize>,
    pub(crate) relink_at: Option<Instant>,
    pub(crate) failed: Option<Error>,
    pub(crate) notes: Vec<Attempt>,
    /// Connections that have not proved themselves, oldest first, and some that have meanwhile.
    pub(crate) unproven: VecDeque<u64>,
    /// Connections that have something to write.
    pub(crate) dirty: HashSet<u64>,
    pub(crate) closing: Option<Instant>,
    pub(crate) resume_accepting: Option<Instant>,
    /// At rank 0 while the job forms: a descriptor to turn connections away with when there is no other.
    pub(crate) spare: Option<UnixDatagram>,
    pub(crate) turned_away: Repeated,
    scratch: Vec<u8>,
}

impl Service {
    pub(crate) fn new(
        plan: Plan,
        shared: Arc<Shared>,
        listener: Option<TcpListener>,
        formation: Formation,
    ) -> Result<Self, SystemError> {
        let events = EventLoop::new(Arc::clone(shared.commands()))?;
        if let Some(listener) = &listener {
            events.add_listener(listener)?;
        }
        let uplink = crate::protocol::tree::parent(plan.rank);
        Ok(Self {
            plan,
            shared,
            events,
            listener,
            connections: HashMap::new(),
            peers: HashMap::new(),
            dials: HashMap::new(),
            formation,
            table: None,
            root_at: None,
            uplink,
            relink_at: None,
            failed: None,
            notes: Vec::new(),
            unproven: VecDeque::new(),
            dirty: HashSet::new(),
            closing: None,
            resume_accepting: None,
            spare: None,
            turned_away: Repeated::default(),
            scratch: vec![0; SCRATCH],
        })
    }

    /// Runs until the bootstrap is dropped.
    pub(crate) fn run(mut self) {
        self.begin_formation(Instant::now());
        loop {
            self.run_commands();
            let now = Instant::now();
            self.check_deadlines(now);
            self.write_dirty();
            if self.is_finished(now) {
                return;
            }
            match self.events.wait_until(self.wake_at()) {
                Ok(ready) => ready.into_iter().for_each(|ready| self.on_ready(ready)),
                Err(error) => {
                    // Without its event loop the rank can do nothing more; for the others it is gone when its sockets close.
                    self.fail(&error.into(), None);
                    return;
                }
            }
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token {
            LISTENER if self.resume_accepting.is_none() => self.accept_all(),
            LISTENER => {}
            token => {
                if ready.writable {
                    self.on_writable(token);
                }
                if ready.readable {
                    self.on_readable(token);
                }
            }
        }
    }

    // ---- Time ------------------------------------------------------------------------------------------------------

    fn check_deadlines(&mut self, now: Instant) {
        self.expire_unproven(now);
        self.advance_dials(now);
        self.advance_formation(now);
        self.relink(now);
    }

    fn wake_at(&self) -> Option<Instant> {
        let unproven = self.oldest_unproven();
        let attempts = self
            .dials
            .values()
            .map(|dial| dial.search.wake_at())
            .chain(self.connections.values().filter(|_| !self.dials.is_empty()).filter_map(|c| c.deadline))
            .min();
        let over = self.failed.is_some() || self.closing.is_some();
        let formation = if over { None } else { self.formation.wake_at(&self.plan) };
        [unproven, attempts, self.resume_accepting, self.closing, self.relink_at, formation]
            .into_iter()
            .flatten()
            .min()
    }

    // ---- Connections -----------------------------------------------------------------------------------------------

    /// Takes a connection in; `None` if the system will not watch it.
    pub(crate) fn enter(&mut self, mut connection: Connection) -> Option<u64> {
        let connecting = matches!(connection.phase, Phase::Connecting { .. });
        connection.awaits_writable = connecting;
        let interest = Interest { read: true, write: connecting };
        let token = self.events.add(connection.stream(), interest);
        let warn = |error| {
            let error = Report(&error).to_string();
            tracing::warn!(target: LOG, rank = self.plan.rank, error, "cannot watch a connection");
        };
        let token = token.map_err(warn).ok()?;
        self.connections.insert(token, connection);
        Some(token)
    }

    /// Takes a connection out and closes it.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Connection> {
        let connection = self.connections.remove(&token)?;
        self.events.remove(connection.stream());
        self.dirty.remove(&token);
        Some(connection)
    }

    /// A connection has ended. What that means depends on its phase.
    pub(crate) fn end(&mut self, token: u64, why: &str) {
        let Some(connection) = self.remove(token) else { return };
        let remote = connection.remote;
        match connection.phase {
            Phase::Connecting { peer, .. }
            | Phase::Greeting { peer, .. }
            | Phase::Proved { peer, .. }
            | Phase::Withdrawn { peer } => {
                self.attempt_failed(peer, remote, Failed::Other(why.to_owned()));
            }
            Phase::Unproven(_) => {
                tracing::info!(target: LOG, rank = self.plan.rank, %remote, why, "dropped a connection of a stranger");
            }
            // By S1, also one that has sent nothing since its proof.
            Phase::Member { rank, .. } if !self.is_formed() => self.peer_lost(rank, why, token),
            Phase::Root if !self.is_formed() => self.peer_lost(0, why, token),
            Phase::Link(link) => self.link_ended(&link, token, why),
            Phase::Member { .. } | Phase::Root | Phase::Leaving => {}
        }
    }

    fn on_writable(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        if matches!(connection.phase, Phase::Connecting { .. }) {
            self.connected(token);
        } else {
            self.dirty.insert(token);
            self.write_dirty();
        }
    }

    fn on_readable(&mut self, token: u64) {
        use crate::tcp::connection::ReadOutcome;
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.is_empty() {
            // It is in use: a frame of another connection led to a write that failed, and `write` to here.
            scratch.resize(SCRATCH, 0);
        }
        // A bound, so that one busy peer leaves time for the others; the event loop tells of the rest again.
        for _ in 0..8 {
            let Some(connection) = self.connections.get_mut(&token) else { break };
            if matches!(connection.phase, Phase::Connecting { .. }) {
                break;
            }
            let outcome = connection.read(&mut scratch);
            self.take_frames(token);
            match outcome {
                ReadOutcome::More => {}
                ReadOutcome::Drained => break,
                ReadOutcome::Ended(why) => {
                    self.end(token, &why);
                    break;
                }
            }
        }
        self.scratch = scratch;
    }

    fn take_frames(&mut self, token: u64) {
        loop {
            let Some(connection) = self.connections.get_mut(&token) else { return };
            match connection.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => {
                    if let Err(error) = self.on_frame(token, frame) {
                        self.end(token, &format!("it broke the protocol: {error}"));
                    }
                }
                Err(error) => self.end(token, &format!("it broke the protocol: {error}")),
            }
        }
    }

    fn on_frame(&mut self, token: u64, frame: Frame) -> Result<(), Malformed> {
        match self.connections.get(&token).map(|c| &c.phase) {
            Some(Phase::Unproven(_)) => {
                self.on_unproven_frame(token, &frame);
                Ok(())
            }
            Some(Phase::Greeting { .. } | Phase::Proved { .. }) => {
                self.on_greeting_frame(token, &frame);
                Ok(())
            }
            Some(Phase::Member { rank, .. }) => self.on_member_frame(token, *rank, &frame),
            Some(Phase::Root) => self.on_root_frame(token, &frame),
            Some(Phase::Link(link)) => self.on_link_frame(token, link.peer, frame),
            Some(Phase::Connecting { .. } | Phase::Withdrawn { .. } | Phase::Leaving) | None => Ok(()),
        }
    }

    /// There is something to write on this connection. It is written before the thread waits again.
    pub(crate) fn mark_dirty(&mut self, token: u64) {
        self.dirty.insert(token);
    }

    pub(crate) fn write_dirty(&mut self) {
        for token in std::mem::take(&mut self.dirty) {
            self.write(token);
        }
    }

    fn write(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if matches!(connection.phase, Phase::Connecting { .. }) {
            return;
        }
        let written = match connection.flush() {
            Ok(written) => written,
            Err(error) => {
                // What the other side sent before may still be there to be read, and may say why.
                let why = format!("the connection broke: {error}");
                self.on_readable(token);
                self.end(token, &why);
                return;
            }
        };
        let blocked = !connection.outbox.pending().is_empty();
        if blocked != connection.awaits_writable {
            connection.awaits_writable = blocked;
            let interest = Interest { read: true, write: blocked };
            let _ = self.events.modify(connection.stream(), token, interest);
        }
        if connection.outbox.is_empty() {
            if matches!(connection.phase, Phase::Leaving) {
                self.remove(token);
            } else if (self.closing.is_some() && !connection.is_unproven()) || connection.is_retired() {
                // It is read on until the other side has finished too: closing with bytes unread, or to come, would make
                // the system throw away what is still on its way there.
                connection.finish_writing();
            }
        }
        if !written.is_empty() {
            self.shared.inbox.update(|| written.iter().for_each(|flag| flag.store(true, Ordering::Release)));
        }
    }

    // ---- Commands and state ----------------------------------------------------------------------------------------

    fn run_commands(&mut self) {
        let shared = Arc::clone(&self.shared);
        for command in shared.commands().take() {
            match command {
                Command::Send { stream, bytes, sent } => {
                    let written = sent.map(|sent| {
                        self.shared.inbox.begin_send(stream.peer, &sent.taken);
                        sent.written
                    });
                    self.send(stream, &bytes, written);
                }
                Command::Open { peer } => self.open(peer),
                Command::Fail(error) => self.fail(&error, None),
                Command::Close => self.close(),
            }
        }
    }

    pub(crate) fn is_formed(&self) -> bool {
        self.shared.is_formed()
    }

    /// Says how a stranger was refused, at once: another rank's end may be this one's before its time is up. Also keeps it
    /// for the message of a time-out. One that comes again and again, each time from another port, is named once.
    pub(crate) fn note_refusal(&mut self, address: SocketAddr, outcome: String) {
        let known = |note: &Attempt| note.address.ip() == address.ip() && note.outcome == outcome;
        if self.notes.len() < NOTES && !self.notes.iter().any(known) {
            tracing::error!(target: LOG, rank = self.plan.rank, %address, "{outcome}");
            self.notes.push(Attempt { address, outcome });
        }
    }
}

/// Set when a message was handed to the system.
pub(crate) type Written = Arc<AtomicBool>;

#[cfg(test)]
mod tests;
