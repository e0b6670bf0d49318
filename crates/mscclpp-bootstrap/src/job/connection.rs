//! One connection: its phase, the bytes half read from it and those still to be written to it.

use std::net::SocketAddr;
use std::time::Instant;

use mscclpp_net::handshake::{Initiator, Responder, Verified};
use mscclpp_net::key::Nonce;

use crate::protocol::frame::{FrameReader, MAX_HANDSHAKE, MAX_PAYLOAD};
use crate::protocol::hello::{JobId, Origin, Purpose};
use crate::protocol::message::Assembler;
use crate::protocol::outbox::{Intake, Outbox};

/// The phase of a connection.
pub(super) enum Phase {
    /// Opened by this rank, and not established yet.
    Connecting { peer: usize, purpose: Purpose },
    /// Opened by this rank, which waits for the challenge, and will answer with this nonce.
    Greeting { peer: usize, purpose: Purpose, nonce: Nonce },
    /// Opened by this rank, which has sent its proof and waits for the answer.
    Proved { peer: usize, purpose: Purpose, initiator: Initiator },
    /// Opened by this rank, which has sent its last frame there (it has withdrawn the proof with which it joined, or
    /// leaves, or has failed) and waits for the other side to close.
    Abandoned { peer: usize },
    /// Opened by a process that was challenged and has not proved itself, so it may be a stranger.
    Unproven(Responder),
    /// A connection at rank 0 to a member that was admitted. It has joined once it has said where it listens.
    Member { rank: usize, joined: bool, from: Origin },
    /// A rank that has come to the directory of a unique id.
    Caller(Caller),
    /// The connection of another rank to rank 0 over which the job forms; or of rank 0 to the directory of its unique id.
    Root,
    /// A connection between two ranks of the formed, or forming, tree, or of two peers.
    Link(Link),
    /// A connection that is closed once everything is written.
    Leaving,
}

/// A rank that has come to a directory and proved itself.
pub(super) struct Caller {
    pub(super) job: JobId,
    pub(super) rank: u32,
    /// The means to answer the rank; `None` for a rank 0 that was let in and has yet to say where it listens.
    pub(super) unanswered: Option<Verified>,
}

/// The state of a connection between two ranks.
pub(super) struct Link {
    pub(super) peer: usize,
    /// Whether this side opened the connection.
    pub(super) ours: bool,
    pub(super) retire_sent: bool,
    pub(super) retire_received: bool,
    /// The part of the table that has come on this connection. If there are two to the parent, it sends the table on both.
    pub(super) table: Vec<u8>,
}

impl Link {
    /// Makes a connection that is in use.
    pub(super) fn new(peer: usize, ours: bool) -> Self {
        Self { peer, ours, retire_sent: false, retire_received: false, table: Vec::new() }
    }
}

pub(super) struct Connection {
    pub(super) remote: SocketAddr,
    /// The address of this rank's end, if the rank opened the connection and it is established.
    pub(super) local: Option<SocketAddr>,
    pub(super) phase: Phase,
    pub(super) reader: FrameReader,
    pub(super) assembler: Assembler,
    pub(super) outbox: Outbox,
    pub(super) intake: Intake,
    /// The deadline of the current phase.
    pub(super) deadline: Option<Instant>,
    /// Whether an action that asks for writing is in the queue.
    pub(super) asks_to_write: bool,
    /// Whether the other side was told that nothing more will come.
    pub(super) finished_writing: bool,
}

impl Connection {
    pub(super) fn new(remote: SocketAddr, phase: Phase, deadline: Option<Instant>) -> Self {
        Self {
            remote,
            local: None,
            phase,
            reader: FrameReader::new(MAX_HANDSHAKE),
            assembler: Assembler::default(),
            outbox: Outbox::default(),
            intake: Intake::default(),
            deadline,
            asks_to_write: false,
            finished_writing: false,
        }
    }

    /// Notes that the other side has proved itself: it has no deadline any more, and may send more at once.
    pub(super) fn has_proved_itself(&mut self) {
        self.deadline = None;
        self.reader.set_limit(MAX_PAYLOAD);
    }

    pub(super) fn is_unproven(&self) -> bool {
        matches!(self.phase, Phase::Unproven(_))
    }

    /// Returns whether both sides have given this connection up for another one to the same peer.
    pub(super) fn is_retired(&self) -> bool {
        matches!(&self.phase, Phase::Link(link) if link.retire_sent && link.retire_received)
    }

    pub(super) fn link_mut(&mut self) -> Option<&mut Link> {
        match &mut self.phase {
            Phase::Link(link) => Some(link),
            _ => None,
        }
    }
}
