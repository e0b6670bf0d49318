//! Communicators whose calls this library carries out.

use std::sync::{Arc, OnceLock};

use mscclpp::{Communicator, gpu::Abort};
use mscclpp_collectives::Collectives;
use parking_lot::Mutex;

use crate::{
    abi::UniqueId, failure::Failure, id::Spare, recorder::Recorder, signals::Signals, statistics::Statistics,
};

/// The parts of a communicator whose calls this library carries out.
pub(crate) struct Ours {
    pub(crate) comm: Communicator,
    pub(crate) collectives: Collectives,
    /// The ids of all ranks under which they can be found if the job has failed.
    pub(crate) spares: Vec<Option<UniqueId>>,
    /// This rank's own such id, which is valid until this is dropped.
    pub(crate) spare: Option<Arc<Spare>>,
    pub(crate) statistics: Statistics,
    pub(crate) recorder: Recorder,
    /// A number that is the same on all ranks, and differs between communicators.
    pub(crate) hash: u64,
    /// The hash of the name of each rank's node.
    pub(crate) nodes: Vec<u64>,
    /// The fewest blocks of a call.
    pub(crate) least_blocks: Option<u32>,
    /// The signals of windows, from the first window on.
    pub(crate) signals: OnceLock<Signals>,
    /// Held while they are set up.
    pub(crate) connecting: Mutex<()>,
}

impl Ours {
    /// Whether the devices of all ranks reach each other's memory, so that there can be signals and peers' windows.
    pub(crate) fn has_signals(&self) -> bool {
        self.collectives.n_nodes() == 1
    }

    /// The ranks that are on the same node as `rank`.
    pub(crate) fn on_node_of(&self, rank: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|other| self.nodes[*other] == self.nodes[rank]).collect()
    }

    /// Sets the signals up, unless they are. All ranks call this together.
    pub(crate) fn connect_signals(&self) -> Result<(), Failure> {
        let _connecting = self.connecting.lock();
        if self.has_signals() && self.signals.get().is_none() {
            let signals = Signals::connect(&self.comm, self.collectives.gpu())?;
            // Nobody else sets them, as the lock is held.
            let _ = self.signals.set(signals);
        }
        Ok(())
    }

    /// The device memory that the communicator takes, in bytes.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.collectives.device_bytes() + self.signals.get().map_or(0, Signals::device_bytes)
    }

    /// Whether all calls are complete, but for those in graphs.
    pub(crate) fn is_idle(&self) -> Result<bool, Failure> {
        Ok(self.collectives.is_idle()? && self.signals.get().is_none_or(Signals::is_idle))
    }

    /// Ends the waits of this rank's calls.
    pub(crate) fn abort(&self, reason: &str) {
        self.collectives.abort(reason);
        if let Some(signals) = self.signals.get() {
            signals.waits().abort(reason);
        }
    }

    /// Checks that the waits of complete calls got what they waited for.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        Abort::check(&self.collectives)?;
        self.signals.get().map_or(Ok(()), |signals| Ok(signals.waits().check()?))
    }
}
