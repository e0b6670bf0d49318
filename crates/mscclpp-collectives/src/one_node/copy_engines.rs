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

use mscclpp::{LaunchConfig, Stream};

use crate::{
    DataType, Result,
    plan::{Plan, Planned, plan},
    rank::{Call, CopyPlaces, Engine, List, RankState, can_fork},
};

use super::engine::OneNode;

impl OneNode {
    /// Puts a call by the copy engines into the stream.
    ///
    /// # Safety
    /// The same as of [`Self::exchange_one`].
    pub(super) unsafe fn by_copy_engines(
        &self,
        rank: &RankState,
        signature: [u64; 2],
        plan: &Plan,
        places: &CopyPlaces,
        call: &Call<'_>,
    ) -> Result<()> {
        let (stream, own) = (call.stream, plan.segments[rank.rank()]);
        let aside = match places.aside.as_ref().filter(|_| own.send != own.recv) {
            Some(aside) if can_fork(stream, aside)? => Some(aside),
            _ => None,
        };
        self.meet(rank, signature, places, call)?;
        let copy_all = |own_part_in: &Stream| -> Result<()> {
            if own.send != own.recv {
                // SAFETY: the caller's promise for this rank's memory, of which nobody writes into this part (C3).
                unsafe { own_part_in.copy(own.recv, own.send, own.recv_bytes)? };
            }
            let ranks = rank.n_ranks();
            // Each rank begins with another peer.
            for p in (1..ranks).map(|n| (rank.rank() + n) % ranks) {
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
        self.meet(rank, signature, places, call)
    }

    /// A barrier, which keeps what the call needs until it is complete.
    fn meet(
        &self,
        rank: &RankState,
        signature: [u64; 2],
        places: &CopyPlaces,
        call: &Call<'_>,
    ) -> Result<()> {
        let words = rank.barrier(self.barrier());
        let Planned::Exchange(plan) = plan(&words, rank.rank(), rank.n_ranks())? else { return Ok(()) };
        // Its words are not registered.
        let query = self.query_with(&plan, &List::default(), rank.rank(), false);
        let selection = self.choose(call.selector, &query).without_bulk(self.max_threads);
        let collective = self.collective_call(rank, &plan, selection, signature);
        let args = call.keeping(&self.owner).with_owner(places.owner.clone());
        let args = args.with(self.handle).with(collective);
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        let kernel = self.kernels.of(selection, None, DataType::U8)?;
        // SAFETY: these are its parameters; what it moves is memory of this communicator's.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(())
    }
}
