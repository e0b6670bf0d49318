//! A set-up that is under way.

use std::{
    panic::resume_unwind,
    thread::{Builder, JoinHandle},
};

use mscclpp::{
    Communicator,
    errors::{GpuError, SystemFailure},
};

use crate::{Collectives, CollectivesBuilder, Result};

/// A set-up that is under way: see [`CollectivesBuilder::start`].
///
/// Dropping it does not end the set-up: it goes on with the other ranks, and what it made is dropped when it is done.
#[must_use = "wait() returns the collectives"]
pub struct Pending {
    comm: Communicator,
    thread: JoinHandle<Result<Collectives>>,
}

impl Pending {
    pub(crate) fn start(comm: Communicator, builder: CollectivesBuilder) -> Result<Self> {
        let thread = Builder::new().name("mscclpp-collect".to_owned()).spawn(move || builder.connect());
        let thread = thread.map_err(|error| {
            GpuError::System(SystemFailure::new("starting a thread that sets up collectives", error))
        })?;
        Ok(Self { comm, thread })
    }

    /// Whether it is done, or has failed: then [`wait`](Self::wait) returns at once. Never blocks.
    #[must_use]
    pub fn poll(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until all ranks are there.
    ///
    /// # Errors
    /// Those of [`CollectivesBuilder::connect`].
    pub fn wait(self) -> Result<Collectives> {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Gives up, and with it the whole job, as [`Communicator::abort`] does: the set-up fails here and on all ranks, and
    /// [`wait`](Self::wait) has the error. Blocks for about a second at most.
    pub fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}

mscclpp_os::debug_fields!(Pending, |this| is_done: this.poll(), ..);

impl CollectivesBuilder {
    /// Begins to set them up and returns at once, so that one thread can set up several ranks, each of a device of its own. A
    /// thread does what [`connect`](Self::connect) does.
    ///
    /// ```no_run
    /// # use mscclpp::{Communicator, Gpu};
    /// # use mscclpp_collectives::{Collectives, Pending, Result};
    /// fn of_this_process(ranks: &[(Communicator, Gpu)]) -> Result<Vec<Collectives>> {
    ///     let pending = ranks.iter().map(|(comm, gpu)| Collectives::builder(comm, gpu).start());
    ///     let pending = pending.collect::<Result<Vec<_>>>()?;
    ///     pending.into_iter().map(Pending::wait).collect()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Below`](crate::Error::Below) if the process can have no more threads. All others come from [`Pending::wait`].
    pub fn start(self) -> Result<Pending> {
        Pending::start(self.comm.clone(), self)
    }
}
