//! The experts of a group of ranks, and what is wrong with their calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{
    Gpu, LaunchConfig, Module, Platform,
    engine::{CallOrder, DeviceRoom, Group, Scratch},
    gpu::{Abort, KernelArgument, KernelWait, Owner, PinnedBuffer, Stream},
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait};

use crate::{
    Error, ExpertsBuilder, Payload, Result, Routed,
    handle::EpHandle,
    launch::Kernels,
    routed::{Pool, next_number},
    scratch::{self, PROBLEM_BYTES},
};

/// The experts of a group of ranks, as one rank has them. Calls are put into streams, in one order on all ranks, and may be
/// captured.
#[derive(Debug, Clone)]
pub struct Experts {
    pub(crate) engine: Arc<Engine>,
    /// The rows that travel.
    pub(crate) payload: Payload,
    pub(crate) handle: EpHandle,
}

/// The part of experts that is the same for all payloads of a set-up.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) gpu: Gpu,
    group: Group,
    pub(crate) exact: bool,
    micro_batches: usize,
    timeout: Option<Duration>,
    scratch: Scratch,
    problems: PinnedBuffer<AtomicU32>,
    pub(crate) kernels: Kernels,
    pub(crate) config: LaunchConfig,
    pub(crate) shared_bytes: u32,
    pub(crate) tables: Pool,
    pub(crate) table_bytes: u64,
    pub(crate) order: CallOrder,
    pub(crate) owner: Owner,
    /// A number of this process.
    pub(crate) number: u32,
    /// For each micro-batch, whether a dispatch or a combine has sent and has not received.
    pub(crate) receives_next: [[AtomicBool; 2]; 2],
    _room: DeviceRoom,
}

impl Experts {
    pub(crate) fn connect(builder: ExpertsBuilder) -> Result<Self> {
        let ExpertsBuilder { comm, gpu, ranks, tag, timeout, mut settings, kernels } = builder;
        let group = Group::meet(&comm, "experts", scratch::build(), ranks, tag)?;
        let n = group.ranks().len();
        group.all_have("the settings of experts", settings.check(n))?;
        group.agree(&settings.agreed(n))?;
        // Before anybody waits on the device: to load a kernel may take until those that run are complete.
        let module = Module::load_once(&gpu, &kernels)?;
        let kernels = Kernels::of(&module, settings.payload.number_type)?;
        let threads = if gpu.platform() == Platform::Sim { 64 } else { 1024 };
        // Below MOST_SHARED.
        let shared_bytes = settings.shared_bytes(n) as u32;
        let room = DeviceRoom::new(&gpu, settings.calls_at_once)?;
        let dispatches = kernels.dispatch.each().map(|kernel| (kernel, shared_bytes));
        let combines = kernels.combine.each().map(|kernel| (kernel, 0));
        for (kernel, shared) in dispatches.into_iter().chain(combines) {
            let blocks = room.blocks(&group, kernel, threads, shared)?;
            settings.max_blocks = settings.max_blocks.min(blocks.into());
        }
        let layout = scratch::Layout::new(&settings, group.rank(), n);
        let scratch = Scratch::connect(&group, &gpu, layout.scratch_bytes)?;
        let words = gpu.allocate(8 * settings.words(n))?;
        let experts = settings.experts_of_kernels(n);
        let map = gpu.allocate(4 * experts.len() as u64)?;
        map.write_params(0, &experts)?;
        let problems = gpu.allocate_pinned_words(PROBLEM_BYTES)?;

        let mut handle = layout.handle;
        handle.scratch[..n].copy_from_slice(scratch.at());
        handle.status[..n].copy_from_slice(scratch.statuses());
        (handle.words, handle.experts, handle.problems) = (words.ptr(), map.ptr(), problems.ptr());
        let owners = [scratch.owner().clone()].into_iter().chain((&words).owner()).chain((&map).owner());
        let owner = Arc::new(owners.chain((&problems).owner()).collect::<Vec<Owner>>());
        let config = LaunchConfig::linear(settings.max_blocks as u32, threads);
        let tables = Pool::default();
        // One is there before a call is captured.
        drop(tables.take(&gpu, layout.table_bytes)?);
        let engine = Engine {
            gpu,
            group,
            exact: settings.exact,
            micro_batches: settings.micro_batches as usize,
            timeout,
            scratch,
            problems,
            kernels,
            config,
            shared_bytes,
            tables,
            table_bytes: layout.table_bytes,
            order: CallOrder::default(),
            owner,
            number: next_number(),
            receives_next: Default::default(),
            _room: room,
        };
        Ok(Self { engine: Arc::new(engine), payload: settings.payload, handle })
    }

    /// The same experts, with other rows that travel: one memory then serves, say, tokens as they are and tokens that are
    /// quantised. H and the type of the numbers stay. A routing is good for all payloads, but
    /// [`Layout::Rank`](crate::Layout::Rank) has only rows of the payload of the dispatch. All ranks use the same payload in the
    /// same call; [`Self::check`] names a rank that does not.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for rows that cannot be, or that need more memory than those of the set-up.
    pub fn with_payload(&self, payload: &Payload) -> Result<Self> {
        let Payload { hidden, number_type, .. } = self.payload;
        let payload = Payload { hidden, number_type, ..payload.clone() };
        payload.check()?;
        let handle = scratch::with_payload(&self.handle, &payload)?;
        Ok(Self { engine: self.engine.clone(), payload, handle })
    }

    /// This rank's number in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.engine.group.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.engine.group.ranks().len()
    }

    /// The number of this rank's experts.
    #[must_use]
    pub fn n_local(&self) -> usize {
        self.handle.local as usize
    }

    /// The device memory that this rank took, in bytes, without the tables of routings.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.engine.scratch.memory().len()
    }

    /// Waits until the work in the stream is complete, and checks the calls. If the time-out of the set-up ends first, it ends
    /// the waits of this rank's calls and says which rank they wait for.
    ///
    /// # Errors
    /// [`Error::Failed`] if a wait for another rank ended early; what [`Self::check`] finds.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let done = match self.engine.timeout {
            Some(timeout) => stream.synchronize_or_abort(timeout, self),
            None => self.complete(stream),
        };
        if matches!(done, Err(Error::Failed { .. })) {
            return done;
        }
        self.check()?;
        done
    }

    /// Waits for the work in the stream without a limit. The log says after ten seconds, and then ever more rarely, that it
    /// waits.
    fn complete(&self, stream: &Stream) -> Result<()> {
        let mut wait = LongWait::begin(FIRST_LOG);
        while !stream.query_timeout(Duration::from_secs(1))? {
            wait.log(Instant::now(), Some(self.rank_in_job()), || {
                format!("calls of experts, which may wait for {}", self.engine.scratch.peers().join(", "))
            });
        }
        Ok(stream.synchronize()?)
    }

    /// Checks the calls that are complete. Does not block.
    ///
    /// # Errors
    /// [`Error::Failed`], and then always; once each: [`Error::TooManyTokens`] if a rank refused its tokens,
    /// [`Error::NoExpert`], [`Error::OtherPayload`], [`Error::Dropped`].
    pub fn check(&self) -> Result<()> {
        Abort::check(self)?;
        let problem = |which: u64| -> Result<u32> {
            Ok(self.engine.problems.word(4 * which)?.swap(0, Ordering::Relaxed))
        };
        if let Some(rank) = problem(2)?.checked_sub(1) {
            let rank = self.job_rank(rank as usize);
            return Err(Error::TooManyTokens { rank, capacity: self.handle.capacity as usize });
        }
        if let Some(token) = problem(0)?.checked_sub(1) {
            return Err(Error::NoExpert { token: token as usize, experts: self.handle.n_experts as usize });
        }
        if let Some(rank) = problem(3)?.checked_sub(1) {
            return Err(Error::OtherPayload { rank: self.job_rank(rank as usize) });
        }
        if problem(1)? != 0 { Err(Error::Dropped) } else { Ok(()) }
    }

    pub(crate) fn rank_in_job(&self) -> usize {
        self.job_rank(self.rank())
    }

    /// The number in the job of a rank of the group.
    fn job_rank(&self, rank: usize) -> usize {
        self.engine.group.ranks().get(rank).copied().unwrap_or(rank)
    }

    pub(crate) fn check_micro_batch(&self, micro_batch: usize) -> Result<()> {
        if micro_batch < self.engine.micro_batches {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "micro-batch {micro_batch} of experts that are set up with micro_batches({})",
            self.engine.micro_batches
        )))
    }

    pub(crate) fn check_routed(&self, routed: &Routed) -> Result<()> {
        if routed.of == self.engine.number {
            return Ok(());
        }
        Err(Error::InvalidArgument("a routing of other experts: give one that these have made".to_owned()))
    }
}

/// Ends the waits of the calls for other ranks. The check names the rank that died.
impl Abort for Experts {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.engine.scratch.abort(reason);
    }

    fn check(&self) -> Result<()> {
        self.engine
            .scratch
            .check()
            .map_err(|error| Error::Failed { rank: self.rank_in_job(), source: Box::new(error) })
    }

    fn peers(&self) -> Vec<String> {
        self.engine.scratch.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.engine.scratch.waits()
    }
}
