//! The actions that come out of a job, and the commands that go in.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::Error;
use crate::inbox::{Sending, Stream};
use crate::protocol::table::Table;

/// The number of a connection of a rank. Numbers count up from 1.
pub type ConnectionId = u64;

/// An action that the driver of the job must carry out.
pub enum Action {
    /// Connect to an address. The outcome is `Job::on_connected` or `Job::on_dial_failed`.
    Dial { id: ConnectionId, address: SocketAddr },
    /// Write on a connection, which has something to write: see `Job::pending`.
    Write { id: ConnectionId },
    /// Tell the other side that nothing more will come, and keep reading.
    FinishWriting { id: ConnectionId },
    /// Close a connection. Nothing more is to be reported about it.
    Close { id: ConnectionId },
    /// Listen at an address that is reachable for processes that reach `local`. The outcome is `Job::on_listening`.
    Listen { local: IpAddr },
    /// Accept no more connections.
    StopListening,
    /// Report that all ranks are connected.
    Formed(Arc<Table>),
    /// Deliver a message to the callers of this rank.
    Deliver { stream: Stream, bytes: Vec<u8> },
    /// Report that a message to a peer has been written.
    Sent(Written),
    /// Report that a peer cannot be reached any more, for this reason.
    Gone { peer: usize, error: Error },
    /// Report that the job has failed.
    Failed(Error),
}

/// A command of a caller of this rank.
pub enum Command {
    /// Send a message.
    Send { stream: Stream, bytes: Vec<u8>, written: Option<Written> },
    /// Make sure that there is a connection to a peer, so that its end is noticed.
    Open { peer: usize },
    /// Fail the job.
    Fail(Error),
    /// Say goodbye and end.
    Close,
}

/// The flags of a message, for its sender.
pub type Written = Arc<Sending>;
