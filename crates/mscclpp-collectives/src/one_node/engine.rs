//! The engine of a rank whose kernels reach the memory of the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mscclpp::{
    Kernel, KernelArgs, LaunchConfig, MemoryChannel, Platform, RegisteredMemory, Semaphore,
    engine::{Group, Scratch},
    gpu::{Abort, KernelArgument, Owner, PinnedBuffer},
};
use parking_lot::Mutex;

use crate::{
    Error, Kind, Request, Result,
    choice::{Devices, Interconnect, LEAST_THREADS, Selection, Selector, time},
    handle::{CollectiveHandle, LENGTHS, LINE, NO_PLACE, OVERLAP},
    plan::{Exchange, Messages, Plan, described},
    rank::{Call, Engine, Lengths, Mapping, RankState, least_device},
    rows::Rows,
};

use super::{kernels::Kernels, scratch::Layout};

/// The number of threads of the kernels that a multiprocessor holds: they have up to 64 registers each.
const THREADS_OF_A_MULTIPROCESSOR: u32 = 1024;

/// The engine of a rank whose kernels reach the memory of the others.
pub(crate) struct OneNode {
    pub(super) layout: Layout,
    pub(super) kernels: Arc<Kernels>,
    pub(super) handle: CollectiveHandle,
    pub(super) scratch: Scratch,
    /// See `CollectiveHandle`.
    mismatch: PinnedBuffer<AtomicU32>,
    /// Whether packets of 128 bytes arrive whole between all ranks.
    pub(super) ll128: bool,
    pub(super) devices: Devices,
    /// The same as [`Query::max_blocks`](crate::Query::max_blocks).
    pub(super) max_blocks: u32,
    pub(super) max_threads: u32,
    /// The same as [`Query::overlap`](crate::Query::overlap).
    pub(super) overlap: bool,
    pub(super) owner: Owner,
    /// The words of the scratch in front of its packets, while the scratch is suspended.
    pub(super) words: Mutex<Option<Vec<u8>>>,
}

impl OneNode {
    /// Gives every rank the scratch of every other. `among_nodes`: the ranks are those of one of several nodes. Blocks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for too little scratch, and those of connecting.
    pub(crate) fn connect(rank: &RankState, among_nodes: bool) -> Result<Self> {
        let RankState { gpu, group, options, .. } = rank;
        let layout = match options.max_blocks {
            Some(blocks) => Layout::new(rank.n_ranks(), blocks, rank.scratch_bytes)?,
            None => Layout::with_room(rank.n_ranks(), rank.max_blocks, rank.scratch_bytes)?,
        };
        // Before anybody waits on the device: to load a kernel may take until those that run are complete.
        let own = Kernels::on(gpu, group.ranks().len(), options.overlap)
            .and_then(|kernels| Ok((kernels, gpu.allocate_pinned_words(4)?)));
        let (kernels, mismatch) = group.all_have("loading the kernels of collectives", own)?;
        let scratch = Scratch::connect(group, gpu, layout.total)?;

        let mut handle = CollectiveHandle {
            epochs: rank.counters.epochs(),
            max_blocks: layout.max_blocks,
            among_nodes: among_nodes.into(),
            mismatch: mismatch.ptr(),
            parts: layout.parts,
            ..CollectiveHandle::of(group.rank(), group.ranks().len())
        };
        handle.scratch[..scratch.at().len()].copy_from_slice(scratch.at());
        handle.status[..scratch.statuses().len()].copy_from_slice(scratch.statuses());
        let lines = scratch.carries_lines();
        let mut max_blocks = layout.max_blocks;
        let (devices, max_threads) = if gpu.platform() == Platform::Sim {
            // Blocks of a call wait for others of it, so all of them run at once.
            let resident = kernels.messages.max_resident_blocks(1, 0)?;
            max_blocks = max_blocks.min(u32::try_from(resident).unwrap_or(u32::MAX));
            (Devices::Sim, u32::MAX)
        } else {
            // Packets of 128 bytes arrive whole over NVLink, and over nothing else.
            let interconnect = if lines { Interconnect::NvLink } else { Interconnect::Other };
            let (capability, multiprocessors) = least_device(group, gpu)?;
            let threads = multiprocessors * THREADS_OF_A_MULTIPROCESSOR / rank.room.calls_at_once();
            (Devices::Gpus { capability, interconnect }, threads.max(LEAST_THREADS))
        };
        let owners = [scratch.owner().clone(), rank.registry.peers.owner()].into_iter();
        let owners = owners.chain((&mismatch).owner()).chain(rank.owner());
        let owner = Arc::new(owners.collect::<Vec<Owner>>());
        Ok(Self {
            layout,
            kernels,
            handle,
            scratch,
            mismatch,
            ll128: lines,
            devices,
            max_blocks,
            max_threads,
            overlap: options.overlap,
            owner,
            words: Mutex::default(),
        })
    }

    /// Whether the ranks are those of one of several nodes. Such ranks publish nothing.
    pub(super) fn is_among_nodes(&self) -> bool {
        self.handle.among_nodes != 0
    }

    /// Returns the error of a call whose kernel has found that rank `other` names a place that does not exist.
    fn no_place(&self, rank: &RankState, other: usize, parity: u32) -> Result<Error> {
        let line = 2 * other as u64 + u64::from(parity);
        let mut named = [0u64; 3];
        // The words are behind those of a check: see `DirectPlaces` of the headers.
        self.scratch.memory().read_params(self.layout.parts.checks + line * LINE + 32, &mut named)?;
        let [segment, offset, bytes] = named;
        let here = match rank.registry.peers.mapped_bytes(other, segment) {
            (Some(bytes), _) => format!("of which {bytes} bytes are mapped here"),
            (None, last) => format!("and the last one here is {last}"),
        };
        let problem = format!("it takes {bytes} bytes at offset {offset} of segment {segment}, {here}");
        Ok(rank.group.malformed(other, problem).into())
    }
}

impl Engine for OneNode {
    fn n_nodes(&self) -> usize {
        1
    }

    fn device_bytes(&self) -> u64 {
        self.scratch.memory().len()
    }

    fn suspendable_bytes(&self) -> u64 {
        match self.scratch.memory().can_suspend() {
            true => self.device_bytes(),
            false => 0,
        }
    }

    unsafe fn suspend(&self, rank: &RankState) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.suspend_scratch(rank) }
    }

    fn resume(&self, rank: &RankState) -> Result<()> {
        self.resume_scratch(rank)
    }

    fn owner(&self) -> &Owner {
        &self.owner
    }

    fn semaphores(&self) -> Box<dyn Iterator<Item = &Semaphore> + '_> {
        Box::new(self.scratch.channels().iter().map(MemoryChannel::semaphore))
    }

    fn check_waits(&self) -> Result<(), mscclpp::Error> {
        Ok(self.scratch.channels().check()?)
    }

    fn barrier(&self) -> Kind<'static> {
        Kind::AllGather
    }

    unsafe fn exchange(
        &self,
        rank: &RankState,
        exchanges: &[Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.exchange_in_few_launches(rank, exchanges, call) }
    }

    unsafe fn move_messages(&self, rank: &RankState, messages: &Messages, call: &Call<'_>) -> Result<()> {
        for batch in messages.batches(rank.rank()) {
            // SAFETY: the caller's promise.
            unsafe { self.move_batch(rank, &batch, call)? };
        }
        Ok(())
    }

    fn selection(
        &self,
        rank: &RankState,
        request: &Request<'_>,
        plan: &Plan,
        selector: &dyn Selector,
    ) -> Option<Selection> {
        let query = self.query(rank, plan);
        match self.own_launch(rank, request, &query) {
            None => Some(self.choose(selector, &query)),
            Some(_) => None,
        }
    }

    fn prediction(&self, rank: &RankState, plan: &Plan) -> Option<Duration> {
        if self.devices == Devices::Sim {
            return None;
        }
        let query = self.query(rank, plan);
        let selection = self.choose(&*rank.options.selector, &query);
        let microseconds = time(&query, selection.protocol, selection.two_steps);
        Duration::try_from_secs_f64(microseconds * 1e-6).ok()
    }

    fn other_length(&self, rank: &RankState) -> Result<Option<Lengths>> {
        // Pairs with the kernel's release, behind which it has written the lengths.
        let found = self.mismatch.word(0)?.load(Ordering::Acquire);
        if found == OVERLAP || found & LENGTHS == 0 {
            return Ok(None);
        }
        let from = (found & 0xffff) - 1;
        let mut lengths = [0u64; 2];
        let at = self.layout.parts.checks + 2 * u64::from(from) * LINE + 64;
        self.scratch.memory().read_params(at, &mut lengths)?;
        let [sent, taken] = lengths;
        Ok(Some(Lengths { from: rank.group.ranks()[from as usize], sent, taken }))
    }

    fn check_mismatch(&self, rank: &RankState) -> Result<()> {
        let ranks = rank.group.ranks();
        // Pairs with the kernel's release, in front of which it has seen the other's words.
        let found = self.mismatch.word(0)?.load(Ordering::Acquire);
        if found == OVERLAP {
            return Err(Error::Overlap { rank: ranks[rank.rank()] });
        }
        let Some(other) = (found & 0xffff).checked_sub(1) else { return Ok(()) };
        let parity = found >> 16 & 1;
        if found & NO_PLACE != 0 {
            return Err(self.no_place(rank, other as usize, parity)?);
        }
        let said = |of: u32| -> Result<String> {
            let mut words = [0u64; 2];
            let index = 2 * u64::from(of) + u64::from(parity);
            self.scratch.memory().read_params(self.layout.parts.checks + index * LINE, &mut words)?;
            Ok(described(words))
        };
        Err(Error::Mismatch {
            rank: ranks[rank.rank()],
            other: ranks[other as usize],
            ours: said(self.handle.rank)?,
            theirs: said(other)?,
        })
    }

    fn choose_rows(&self, rank: &RankState, rows: &Rows) -> Result<Option<Selection>> {
        self.selection_of_rows(rank, rows)
    }

    unsafe fn all_reduce_rows(
        &self,
        rank: &RankState,
        rows: &Rows,
        selection: Selection,
        (kernel, args): (&Kernel, KernelArgs),
        call: &Call<'_>,
    ) -> Result<()> {
        let args = args.with_owner(self.owner.clone()).keeping_each(call.buffers.iter().copied());
        let args = args.with(self.handle).with(self.rows_call(rank, rows, selection));
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        // SAFETY: the caller answers for the kernel, its other parameters and their memory.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(())
    }

    #[cfg(all(test, feature = "cuda-ipc"))]
    fn last_direct(&self, from: usize, results: bool) -> Result<u64> {
        let step = if results { self.handle.ranks as usize } else { 0 };
        let line = (step + from) as u64 * u64::from(self.layout.max_blocks);
        let mut mode = [0u64];
        self.scratch.memory().read_params(self.layout.parts.signals + line * LINE + 8, &mut mode)?;
        Ok(mode[0])
    }

    fn maps_memory(&self) -> bool {
        true
    }

    fn map(
        &self,
        rank: &RankState,
        group: &Group,
        own: &RegisteredMemory,
        parts: &[[u64; 4]],
    ) -> Result<Option<Mapping>> {
        self.map_registered(rank, group, own, parts).map(Some)
    }
}
