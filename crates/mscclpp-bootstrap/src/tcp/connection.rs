//! One socket, what is half read from it and what is still to be written to it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::protocol::frame::{Frame, FrameReader, MAX_HANDSHAKE};
use crate::protocol::handshake::{Initiator, Responder};
use crate::protocol::hello::Purpose;
use crate::protocol::message::Assembler;
use crate::protocol::outbox::{Intake, Outbox};
use mscclpp_net::wire::Malformed;

/// Where a connection is in its life.
pub(crate) enum Phase {
    /// Opened by this rank, and not established yet.
    Connecting { peer: usize, purpose: Purpose },
    /// Opened by this rank, which waits for the challenge.
    Greeting { peer: usize, purpose: Purpose },
    /// Opened by this rank, which has sent its proof and waits for the answer.
    Proved { peer: usize, purpose: Purpose, initiator: Initiator },
    /// Opened by this rank, which has withdrawn the proof with which it joined, and waits for the other side to close.
    Withdrawn { peer: usize },
    /// Opened by somebody who was challenged and has not proved itself: a stranger, as far as is known.
    Unproven(Responder),
    /// At rank 0: a member that was admitted, and that has joined once it has said where it listens.
    Member { rank: usize, joined: bool, from: String },
    /// At another rank: the connection to rank 0 over which the job forms.
    Root,
    /// A connection between two ranks of the formed, or forming, tree, or of two peers.
    Link(Link),
    /// To be closed once all is written.
    Leaving,
}

/// What is particular to a connection between two ranks.
pub(crate) struct Link {
    pub(crate) peer: usize,
    /// Whether this side opened it.
    pub(crate) ours: bool,
    pub(crate) retire_sent: bool,
    pub(crate) retire_received: bool,
}

/// A socket of a rank, with what is half read from it and still to be written to it.
pub(crate) struct Connection {
    stream: TcpStream,
    pub(crate) remote: SocketAddr,
    pub(crate) phase: Phase,
    pub(crate) reader: FrameReader,
    pub(crate) assembler: Assembler,
    pub(crate) outbox: Outbox,
    pub(crate) intake: Intake,
    /// When the current phase must be over.
    pub(crate) deadline: Option<Instant>,
    /// Whether the event loop was asked to tell when it can be written.
    pub(crate) awaits_writable: bool,
    finished_writing: bool,
}

/// What reading came to.
pub(crate) enum ReadOutcome {
    /// Nothing more is there now.
    Drained,
    /// More is there; others are to have their turn first.
    More,
    /// The other side closed, or the connection broke.
    Ended(String),
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        remote: SocketAddr,
        phase: Phase,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            stream,
            remote,
            phase,
            reader: FrameReader::new(MAX_HANDSHAKE),
            assembler: Assembler::default(),
            outbox: Outbox::default(),
            intake: Intake::default(),
            deadline,
            awaits_writable: false,
            finished_writing: false,
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether the other side has not proved itself.
    pub(crate) fn is_unproven(&self) -> bool {
        matches!(self.phase, Phase::Unproven(_))
    }

    /// Whether both sides have given this connection up for another one to the same peer.
    pub(crate) fn is_retired(&self) -> bool {
        matches!(&self.phase, Phase::Link(link) if link.retire_sent && link.retire_received)
    }

    pub(crate) fn link_mut(&mut self) -> Option<&mut Link> {
        match &mut self.phase {
            Phase::Link(link) => Some(link),
            _ => None,
        }
    }

    /// Reads what fits into `scratch`, into the frame reader.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> ReadOutcome {
        match self.stream.read(scratch) {
            Ok(0) => ReadOutcome::Ended("it closed the connection".to_owned()),
            Ok(n) => {
                self.reader.push(&scratch[..n]);
                if n < scratch.len() { ReadOutcome::Drained } else { ReadOutcome::More }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => ReadOutcome::Drained,
                io::ErrorKind::Interrupted => ReadOutcome::More,
                _ => ReadOutcome::Ended(format!("the connection broke: {error}")),
            },
        }
    }

    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        self.reader.next()
    }

    /// Writes what can be written. Gives the flags of the messages that were completed.
    pub(crate) fn flush(&mut self) -> io::Result<Vec<Arc<AtomicBool>>> {
        let mut written = Vec::new();
        loop {
            let pending = self.outbox.pending();
            if pending.is_empty() {
                return Ok(written);
            }
            match self.stream.write(pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => written.extend(self.outbox.advance(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Tells the other side, once, that nothing more will come.
    pub(crate) fn finish_writing(&mut self) {
        if !self.finished_writing {
            self.finished_writing = true;
            // It fails when the other side is gone already, which reading shows.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}
