//! All-gathers and all-to-alls by the copy engines, into memory that is registered as symmetric. They reach more of the link than
//! kernels do, and leave the multiprocessors to others.
//!
//! A call is a barrier between all ranks, copies, and another barrier, in one stream.
//!
//! - C1. A rank's copies begin when every rank's first barrier runs. So what came before in the peers' streams is complete, and
//!   their receive memory has neither to be read nor written any more. If the barrier gave up, the copies are made all the same:
//!   nothing takes them out of a stream. [`Collectives::register_symmetric`](crate::Collectives::register_symmetric) says so.
//! - C2. The second barrier comes behind the copies, in each rank's stream. So when it is complete on a rank, all that the others
//!   send it is there, and nobody writes into its memory any more.
//! - C3. Where a peer's place is, this rank knows by the promise of
//!   [`Collectives::register_symmetric`](crate::Collectives::register_symmetric). No part of it is memory that the
//!   call sends from, but for the own part of an all_gather, into which nobody else writes.
//!
//! The own part is copied beside the others, in a stream that is forked from the call's and joined with it again; before them
//! where that cannot be (`can_fork`).

use mscclpp::{DeviceBuffer, DevicePtr, LaunchConfig, Stream, gpu::Owner};

use crate::{
    DataType, Kind, Request, Result,
    calls::{CollectivesState, Mapped},
    handle::MAX_RANKS,
    kernels::WordOperation,
    order::can_fork,
    plan::{Plan, Planned},
};

/// The places that the copies go to.
pub(crate) struct Places {
    /// Where this rank's part lies at each peer.
    pub(crate) at_peers: [DevicePtr; MAX_RANKS],
    /// For the copy of the own part, if it has a stream of its own.
    pub(crate) aside: Option<Stream>,
    /// Keeps the memory until the call is complete.
    pub(crate) owner: Owner,
}

impl CollectivesState {
    /// # Safety
    /// As for [`CollectivesState::exchange`].
    pub(crate) unsafe fn by_copy_engines(
        &self,
        mapped: &Mapped,
        signature: [u64; 2],
        plan: &Plan,
        places: &Places,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let (rank, ranks) = (self.group.rank, self.group.ranks.len());
        let own = plan.segments[rank];
        let aside = match places.aside.as_ref().filter(|_| own.send != own.recv) {
            Some(aside) if can_fork(stream, aside)? => Some(aside),
            _ => None,
        };
        self.meet(mapped, signature, places, stream, buffers)?;
        let copy_all = |own_part_in: &Stream| -> Result<()> {
            if own.send != own.recv {
                // SAFETY: the caller's promise for this rank's memory, of which nobody writes into this part (C3).
                unsafe { own_part_in.copy(own.recv, own.send, own.recv_bytes)? };
            }
            // Each rank begins with another peer.
            for p in (1..ranks).map(|n| (rank + n) % ranks) {
                let segment = plan.segments[p];
                // SAFETY: the caller's promise for what is sent; the place is in the peer's memory, which is mapped here as long
                // as `places.owner` is kept, and free for this (C1).
                unsafe { stream.copy(places.at_peers[p], segment.send, segment.send_bytes)? };
            }
            Ok(())
        };
        match aside {
            Some(aside) => aside.join(&[stream], || copy_all(aside))?,
            None => copy_all(stream)?,
        }
        self.meet(mapped, signature, places, stream, buffers)
    }

    /// A barrier, which keeps what the call needs until it is complete.
    fn meet(
        &self,
        mapped: &Mapped,
        signature: [u64; 2],
        places: &Places,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let (kind, none, data_type) = (Kind::Barrier, DevicePtr::NULL, DataType::U8);
        let barrier = self.planned(&Request { kind, send: none, recv: none, count: 0, data_type })?;
        let Planned::Exchange(plan) = barrier else { return Ok(()) };
        let mut query = self.query(mapped, &plan, false);
        // Its words are not registered.
        (query.possible.direct, query.possible.bulk) = (false, false);
        let selection = self.choose(&query);
        let call = self.call(mapped, &plan, selection, signature);
        let args = self.keeping(buffers).with_owner(places.owner.clone()).with(mapped.handle).with(call);
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        let kernel = mapped.kernels.of(selection, WordOperation::Move)?;
        // SAFETY: these are its parameters; what it moves is memory of this communicator's.
        unsafe { kernel.launch(stream, config, &args)? };
        Ok(())
    }
}
