//! One connection: how far it has come, what is half read from it and what is still to be written to it.

use std::net::SocketAddr;
use std::time::Instant;

use mscclpp_net::handshake::{Initiator, Responder};
use mscclpp_net::key::Nonce;

use crate::protocol::frame::{FrameReader, MAX_HANDSHAKE, MAX_PAYLOAD};
use crate::protocol::hello::{Origin, Purpose};
use crate::protocol::message::Assembler;
use crate::protocol::outbox::{Intake, Outbox};

/// Where a connection is in its life.
pub(super) enum Phase {
    /// Opened by this rank, and not established yet.
    Connecting { peer: usize, purpose: Purpose },
    /// Opened by this rank, which waits for the challenge, and will answer with this nonce.
    Greeting { peer: usize, purpose: Purpose, nonce: Nonce },
    /// Opened by this rank, which has sent its proof and waits for the answer.
    Proved { peer: usize, purpose: Purpose, initiator: Initiator },
    /// Opened by this rank, which has said its last word there (it has withdrawn the proof with which it joined, or leaves, or has
    /// failed) and waits for the other side to close.
    Abandoned { peer: usize },
    /// Opened by somebody who was challenged and has not proved itself: a stranger, as far as is known.
    Unproven(Responder),
    /// At rank 0: a member that was admitted, and that has joined once it has said where it listens.
    Member { rank: usize, joined: bool, from: Origin },
    /// At another rank: the connection to rank 0 over which the job forms.
    Root,
    /// A connection between two ranks of the formed, or forming, tree, or of two peers.
    Link(Link),
    /// To be closed once all is written.
    Leaving,
}

/// What is particular to a connection between two ranks.
pub(super) struct Link {
    pub(super) peer: usize,
    /// Whether this side opened it.
    pub(super) ours: bool,
    pub(super) retire_sent: bool,
    pub(super) retire_received: bool,
}

impl Link {
    /// One that serves.
    pub(super) fn new(peer: usize, ours: bool) -> Self {
        Self { peer, ours, retire_sent: false, retire_received: false }
    }
}

pub(super) struct Connection {
    pub(super) remote: SocketAddr,
    /// This rank's end, if it opened the connection and it is established.
    pub(super) local: Option<SocketAddr>,
    pub(super) phase: Phase,
    pub(super) reader: FrameReader,
    pub(super) assembler: Assembler,
    pub(super) outbox: Outbox,
    pub(super) intake: Intake,
    /// When the current phase must be over.
    pub(super) deadline: Option<Instant>,
    /// An action that asks for writing is waiting for its turn.
    pub(super) asks_to_write: bool,
    /// The other side was told that nothing more will come.
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

    /// The other side has proved itself: it has time, and may say more at once.
    pub(super) fn has_proved_itself(&mut self) {
        self.deadline = None;
        self.reader.set_limit(MAX_PAYLOAD);
    }

    pub(super) fn is_unproven(&self) -> bool {
        matches!(self.phase, Phase::Unproven(_))
    }

    /// Whether both sides have given this connection up for another one to the same peer.
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
