//! The engine of a rank: the means by which its calls are carried out, which depend on how ranks reach each other.

use std::time::Duration;

use mscclpp::{Kernel, KernelArgs, RegisteredMemory, Semaphore, engine::Group, gpu::Owner};

use crate::{
    Error, Kind, Request, Result,
    choice::{Selection, Selector},
    plan::{Exchange, Messages, Plan},
    rows::Rows,
};

use super::{
    registrations::Mapping,
    state::{Call, RankState},
};

/// The lengths in bytes that rank `from` and this one gave a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) from: usize,
    pub(crate) sent: u64,
    pub(crate) taken: u64,
}

/// Carries out the calls of a rank.
pub(crate) trait Engine: Send + Sync {
    /// The number of nodes that the ranks are on.
    fn n_nodes(&self) -> usize;

    /// The device memory that it takes, in bytes.
    fn device_bytes(&self) -> u64;

    /// How much of that it can give back.
    fn suspendable_bytes(&self) -> u64;

    /// Gives memory back, and keeps its addresses. All ranks call it, and it blocks until they do.
    ///
    /// # Safety
    /// The calls of this rank are complete, also those in graphs, and none is made until the engine is resumed.
    unsafe fn suspend(&self, rank: &RankState) -> Result<()>;

    /// Takes the memory again. All ranks call it, and it blocks until they do.
    fn resume(&self, rank: &RankState) -> Result<()>;

    /// The memory and connections that launches keep.
    fn owner(&self) -> &Owner;

    /// The semaphores through which it waits for other ranks.
    fn semaphores(&self) -> Box<dyn Iterator<Item = &Semaphore> + '_>;

    /// Checks that the waits of complete calls got what they waited for.
    fn check_waits(&self) -> Result<(), mscclpp::Error>;

    /// The collective that does a barrier, of a word from each rank.
    fn barrier(&self) -> Kind<'static>;

    /// Puts exchanges into the stream, in this order.
    ///
    /// # Safety
    /// The memory of the plans lives until the launches are complete, and the device reaches it. No result overlaps other
    /// memory of the call, but as [`Request::recv`] says.
    unsafe fn exchange(
        &self,
        rank: &RankState,
        exchanges: &[Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<()>;

    /// Puts messages between pairs of ranks into the stream.
    ///
    /// # Safety
    /// The same as of [`Self::exchange`], for the memory of the messages.
    unsafe fn move_messages(&self, rank: &RankState, messages: &Messages, call: &Call<'_>) -> Result<()>;

    /// The selection by which an exchange would be done, if a kernel of the library does it.
    fn selection(
        &self,
        _rank: &RankState,
        _request: &Request<'_>,
        _plan: &Plan,
        _selector: &dyn Selector,
    ) -> Option<Selection> {
        None
    }

    /// The predicted time of an exchange, if there is a prediction.
    fn prediction(&self, _rank: &RankState, _plan: &Plan) -> Option<Duration> {
        None
    }

    /// Checks what kernels found wrong with calls: that no rank made another call, and no two calls ran at the same time.
    fn check_mismatch(&self, _rank: &RankState) -> Result<()> {
        Ok(())
    }

    /// The lengths of a message that its sender gave another one than this rank, if a kernel has found one.
    fn other_length(&self, _rank: &RankState) -> Result<Option<Lengths>> {
        Ok(None)
    }

    /// Tells all other ranks what failed, unless they were notified.
    fn tell_failure(&self) {}

    /// The selection of an `all_reduce` of rows. None if there are no rows.
    fn choose_rows(&self, _rank: &RankState, _rows: &Rows) -> Result<Option<Selection>> {
        Err(no_rows())
    }

    /// Puts an `all_reduce` of rows into the stream.
    ///
    /// # Safety
    /// The same as of [`Collectives::all_reduce_rows`](crate::Collectives::all_reduce_rows).
    unsafe fn all_reduce_rows(
        &self,
        _rank: &RankState,
        _rows: &Rows,
        _selection: Selection,
        _launch: (&Kernel, KernelArgs),
        _call: &Call<'_>,
    ) -> Result<()> {
        Err(no_rows())
    }

    /// Returns the number of the last call in which the first lane from a rank came directly: see D8 in
    /// `collective_direct_device.hpp`. `results`: the lane of the results of an `all_reduce`.
    #[cfg(all(test, feature = "cuda-ipc"))]
    fn last_direct(&self, _from: usize, _results: bool) -> Result<u64> {
        Ok(0)
    }

    /// Whether peers write into memory that this rank registers: otherwise nothing is registered with them.
    fn maps_memory(&self) -> bool {
        false
    }

    /// Maps the memory that the peers register together with `own`. `parts` describes the part of each rank: its second and
    /// third words are the part's offset and length. All ranks call it.
    fn map(
        &self,
        _rank: &RankState,
        _group: &Group,
        _own: &RegisteredMemory,
        _parts: &[[u64; 4]],
    ) -> Result<Option<Mapping>> {
        Ok(None)
    }
}

fn no_rows() -> Error {
    Error::InvalidArgument(
        "all_reduce_rows does not work between nodes, because it needs devices that access each other's memory; call all_reduce, \
         and then a kernel of your own"
            .into(),
    )
}
