use std::collections::VecDeque;

use crate::job::action::{ConnectionId, Written};
use crate::protocol::message::Sequence;

/// The state of one other rank.
#[derive(Default)]
pub(super) struct Peer {
    /// The connections to the rank, oldest first.
    pub(super) links: Vec<ConnectionId>,
    /// The connection on which messages are sent.
    pub(super) sender: Option<ConnectionId>,
    pub(super) waiting: VecDeque<(Vec<Vec<u8>>, Option<Written>)>,
    pub(super) sent: u64,
    pub(super) incoming: Sequence,
    /// The number of messages that the rank had sent when it said goodbye, if it has.
    pub(super) farewell: Option<u64>,
    pub(super) departed: bool,
}

impl Peer {
    /// Returns how many messages were put on a connection to the rank; those that wait for a connection do not count.
    pub(super) fn sent(&self) -> u64 {
        self.sent - self.waiting.len() as u64
    }

    /// Drops the messages that wait for a connection. Their numbers are free again, because they have not been sent.
    pub(super) fn drop_waiting(&mut self) {
        self.sent = self.sent();
        self.waiting.clear();
    }
}
