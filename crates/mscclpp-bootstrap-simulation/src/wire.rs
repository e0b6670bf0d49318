use std::time::Duration;

use mscclpp_bootstrap::job::ConnectionId;

/// A connection of the simulated network.
pub(super) struct Wire {
    /// The side that dialled, and the side that listened.
    pub(super) ends: [End; 2],
    /// Whether nothing arrives any more.
    pub(super) dead: bool,
}

/// One side of a connection.
#[derive(Default)]
pub(super) struct End {
    pub(super) node: Option<usize>,
    pub(super) id: Option<ConnectionId>,
    pub(super) closed: bool,
    /// The time at which the last of the bytes that it has sent arrive.
    pub(super) arrives: Duration,
    /// The number of its bytes that are on their way.
    pub(super) under_way: usize,
    pub(super) blocked: bool,
    pub(super) finished: bool,
    /// A number that rises when bytes on their way are thrown away.
    pub(super) epoch: u32,
}
