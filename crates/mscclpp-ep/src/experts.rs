//! The experts of a group of ranks, and what is wrong with their calls.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{
    DeviceBuffer, Gpu, Kernel, KernelArgs, LaunchConfig, Module,
    engine::{CallOrder, DeviceRoom, Group, Scratch},
    errors::{BootstrapError, CoreError},
    gpu::{Abort, KernelArgument, KernelWait, Owner, PinnedBuffer, Stream},
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait};

use crate::{
    Error, ExpertsBuilder, Payload, Result, Routed,
    handle::{DROPPED, EpHandle, IN_USE, LOST_CHOICES, NEWLY_LOST, ROWS_GONE, SAID, SAID_ALL},
    kernels::Kernels,
    scratch::{self, PROBLEM_BYTES},
    tables::Pool,
};

/// The experts of a group of ranks, as one rank has them. Calls are put into streams, in one order on all ranks, and may be
/// captured. A clone is the same experts.
#[derive(Debug, Clone)]
pub struct Experts {
    pub(crate) engine: Arc<Engine>,
    /// The rows that travel, and the bytes of a row of each tensor that dispatch is given, and of each that comes.
    payload: Payload,
    pub(crate) given: Vec<u64>,
    pub(crate) coming: Vec<u64>,
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
    /// `EpHandle::words`.
    words: DeviceBuffer,
    problems: PinnedBuffer<AtomicU32>,
    /// How many choices were dropped, as far as somebody was told.
    dropped: AtomicU32,
    /// A bit for each rank of the group that is known to be lost.
    lost: AtomicU32,
    /// Why the calls were ended, if they survive a loss.
    aborted: OnceLock<String>,
    pub(crate) kernels: Kernels,
    pub(crate) release: Kernel,
    pub(crate) check_received: Kernel,
    pub(crate) host_counts: Kernel,
    lose: Kernel,
    pub(crate) config: LaunchConfig,
    pub(crate) shared_bytes: u32,
    pub(crate) tables: Pool,
    pub(crate) table_bytes: u64,
    pub(crate) order: CallOrder,
    pub(crate) owner: Owner,
    /// For each micro-batch, whether a dispatch or a combine has sent and has not received.
    pub(crate) receives_next: [[AtomicBool; 2]; 2],
    pub(crate) room: DeviceRoom,
}

impl Experts {
    pub(crate) fn connect(builder: ExpertsBuilder) -> Result<Self> {
        let ExpertsBuilder { comm, gpu, ranks, tag, timeout, mut settings, kernels } = builder;
        let group = Group::meet(&comm, "experts", scratch::build(), ranks, tag)?;
        let n = group.ranks().len();
        group.all_have("the settings of experts", settings.check(n))?;
        group.agree(&settings.agreed(n))?;
        // Before anybody waits on the device: to load a kernel may take until those that run are complete.
        let number_type = settings.payload.number_type;
        let load = || -> Result<_> {
            let module = |library| Module::load_once(&gpu, &kernels.unwrap_or(library));
            let dispatches = module(mscclpp_kernels::EXPERTS)?;
            let (library, combine) = number_type.kernels();
            let combines = module(library)?;
            let others = ["ep_release", "ep_check_received", "ep_host_counts", "ep_lose"];
            let [release, check_received, host_counts, lose] = others.map(|name| dispatches.kernel(name));
            let others = [release?, check_received?, host_counts?, lose?];
            let kernels = |dispatches, by_packets| -> Result<_> {
                let (blocks, threads) = settings.blocks(gpu.platform(), by_packets);
                Ok((Kernels::of(dispatches, &combines, combine, by_packets, threads)?, blocks))
            };
            let mut ways = vec![kernels(&dispatches, false)?];
            if settings.capacity <= settings.packets_up_to {
                ways.push(kernels(&module(mscclpp_kernels::EXPERTS_BY_PACKETS)?, true)?);
            }
            Ok((others, ways))
        };
        let ([release, check_received, host_counts, lose], mut ways) =
            group.all_have("the kernels of experts", load())?;
        // Below MOST_SHARED.
        let shared_bytes = settings.shared_bytes(n) as u32;
        let room = DeviceRoom::new(&group, &gpu, settings.calls_at_once)?;
        for (Kernels { dispatch, special, combine, threads, .. }, most) in &mut ways {
            let special = special.iter().map(|(_, kernel)| kernel);
            let dispatches = [&*dispatch].into_iter().chain(special).map(|kernel| (kernel, shared_bytes));
            for (kernel, shared) in dispatches.chain([(&*combine, 0)]) {
                *most = u64::from(room.blocks(&group, kernel, *threads, shared)?).min(*most);
            }
        }
        let (mut kernels, mut blocks) = ways.swap_remove(ways.len() - 1);
        let mut layout = scratch::Layout::new(&settings, group.rank(), n);
        let scratch = Scratch::connect(&group, &gpu, layout.scratch_bytes)?;
        if !scratch.carries_lines() {
            // Rows that are stored need less memory.
            settings.packets_up_to = 0;
            if let Some(by_stores) = ways.pop() {
                (kernels, blocks) = by_stores;
            }
            layout = scratch::Layout::new(&settings, group.rank(), n);
        }
        let words = gpu.allocate(8 * settings.words(n, blocks))?;
        let experts = settings.experts_of_kernels(n);
        let map = gpu.allocate(4 * experts.len() as u64)?;
        map.write_params(0, &experts)?;
        let problems = gpu.allocate_pinned_words(PROBLEM_BYTES)?;

        let mut handle = layout.handle;
        handle.max_blocks = blocks as u32;
        handle.scratch[..n].copy_from_slice(scratch.at());
        handle.status[..n].copy_from_slice(scratch.statuses());
        (handle.words, handle.experts, handle.problems) = (words.ptr(), map.ptr(), problems.ptr());
        let owners = [scratch.owner().clone()].into_iter().chain((&words).owner()).chain((&map).owner());
        let owner = Arc::new(owners.chain((&problems).owner()).collect::<Vec<Owner>>());
        let config = LaunchConfig::linear(blocks as u32, kernels.threads);
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
            words,
            problems,
            dropped: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            aborted: OnceLock::new(),
            kernels,
            release,
            check_received,
            host_counts,
            lose,
            config,
            shared_bytes,
            tables,
            table_bytes: layout.table_bytes,
            order: CallOrder::default(),
            owner,
            receives_next: Default::default(),
            room,
        };
        let engine = Arc::new(engine);
        if settings.patience != 0 {
            let weak = Arc::downgrade(&engine);
            comm.bootstrap().on_failure(Box::new(move |failure| match (failure, weak.upgrade()) {
                (BootstrapError::PeerLost { rank, .. }, Some(engine)) => engine.say_lost(*rank),
                (failure, Some(engine)) => engine.end(failure.to_string()),
                _ => {}
            }));
        }
        Ok(Self::of(engine, settings.payload, handle))
    }

    fn of(engine: Arc<Engine>, payload: Payload, handle: EpHandle) -> Self {
        Self { engine, given: payload.given(), coming: payload.travelling(), payload, handle }
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
        Ok(Self::of(self.engine.clone(), payload, handle))
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

    /// The device memory that this rank took: [`ExpertsBuilder::scratch_bytes`], in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.engine.scratch.memory().len()
    }

    /// The ranks that are known to be lost, by their numbers in the job.
    #[must_use]
    pub fn lost(&self) -> Vec<usize> {
        self.ranks_of(self.engine.lost.load(Ordering::Relaxed))
    }

    /// How many choices of tokens counted as none, because the rank of the expert was lost. Waits until the device has answered.
    ///
    /// # Errors
    /// [`Error::Below`] if the device does not answer.
    pub fn lost_choices(&self) -> Result<u64> {
        let mut choices = [0];
        self.engine.words.read_params(8 * LOST_CHOICES, &mut choices)?;
        Ok(choices[0])
    }

    /// Has the calls that follow in the stream go on without these ranks, as if they were lost. They are given by their numbers
    /// in the job, and nothing brings them back. Other ranks need not make this call. A rank that is given up here, and lives,
    /// may make a rank wait that has not given it up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for this rank, for a rank that does not take part, and for experts that do not
    /// [survive a loss](ExpertsBuilder::survive_loss).
    pub fn lose(&self, ranks: &[usize], stream: &Stream) -> Result<()> {
        if self.handle.patience == 0 {
            return Err(Error::InvalidArgument(
                "lose() is for experts that are set up with survive_loss()".to_owned(),
            ));
        }
        let mut bits = 0;
        for rank in ranks {
            match self.engine.group.ranks().iter().position(|of| of == rank) {
                Some(r) if r != self.rank() => bits |= 1u32 << r,
                _ => {
                    return Err(Error::InvalidArgument(format!(
                        "lose() of rank {rank}, which is no other rank"
                    )));
                }
            }
        }
        self.engine.lost.fetch_or(bits, Ordering::Relaxed);
        let args = KernelArgs::new().with_owner(self.engine.owner.clone()).with(self.handle).with(bits);
        self.engine.order.put(stream, || {
            // SAFETY: these are the kernel's parameters.
            unsafe { self.engine.lose.launch(stream, LaunchConfig::linear(1, 1), &args) }.map_err(Error::from)
        })
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
    /// [`Error::Failed`], and then always; once each: [`Error::Lost`], [`Error::TooManyTokens`] if a rank refused its tokens,
    /// [`Error::NoExpert`], [`Error::OtherPayload`], [`Error::RowsGone`], [`Error::Dropped`].
    pub fn check(&self) -> Result<()> {
        Abort::check(self)?;
        let mut lost = 0;
        for r in 0..self.handle.ranks {
            lost |= self.problem(NEWLY_LOST + u64::from(r))? << r;
        }
        let new = lost & !self.engine.lost.fetch_or(lost, Ordering::Relaxed);
        if new == 0 {
            return self.check_failures();
        }
        // Rows that a call dropped when it met the loss are no error of their own: it may have counted rows that did not come.
        self.dropped()?;
        Err(Error::Lost { ranks: self.ranks_of(new) })
    }

    /// Checks the calls for everything but ranks that are lost. A call does so before it is made: a loss must not keep it from
    /// being made, since the ranks that are left make as many calls.
    pub(crate) fn check_failures(&self) -> Result<()> {
        Abort::check(self)?;
        let problem = |which| self.problem(which);
        if let Some(micro_batch) = problem(IN_USE)?.checked_sub(1) {
            let reason = format!(
                "the rows of the last dispatch of micro-batch {micro_batch}, which lie where they came (Layout::Rank), were not given \
                 back before the next one: combine them, or call release()"
            );
            self.engine.scratch.abort(&reason);
            self.engine.end(reason);
            return Abort::check(self);
        }
        if let Some(micro_batch) = problem(ROWS_GONE)?.checked_sub(1) {
            return Err(Error::RowsGone { micro_batch: micro_batch as usize });
        }
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
        match self.dropped()? {
            0 => Ok(()),
            choices => Err(Error::Dropped { choices }),
        }
    }

    /// Takes how many choices the kernels have dropped. They only add to their number: to add to a word of the host is not atomic
    /// with what the host does on all machines.
    fn dropped(&self) -> Result<u32> {
        let all = self.engine.problems.word(4 * DROPPED)?.load(Ordering::Relaxed);
        Ok(all.wrapping_sub(self.engine.dropped.swap(all, Ordering::Relaxed)))
    }

    /// Takes what the kernels have said of a problem.
    fn problem(&self, which: u64) -> Result<u32> {
        Ok(self.engine.problems.word(4 * which)?.swap(0, Ordering::Relaxed))
    }

    pub(crate) fn rank_in_job(&self) -> usize {
        self.job_rank(self.rank())
    }

    /// The number in the job of a rank of the group.
    fn job_rank(&self, rank: usize) -> usize {
        self.engine.group.ranks().get(rank).copied().unwrap_or(rank)
    }

    /// The numbers in the job of ranks whose bits are set.
    fn ranks_of(&self, bits: u32) -> Vec<usize> {
        (0..self.n_ranks()).filter(|r| bits >> r & 1 != 0).map(|r| self.job_rank(r)).collect()
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
        if routed.is_of(self) {
            return Ok(());
        }
        Err(Error::InvalidArgument("a routing of other experts: give one that these have made".to_owned()))
    }
}

impl Engine {
    /// Tells the kernels that a rank of the job is lost. Their waits for it end.
    fn say_lost(&self, rank: usize) {
        if let Some(r) = self.group.ranks().iter().position(|of| *of == rank) {
            self.say(1 << r);
        }
    }

    /// Ends all waits, for good.
    fn end(&self, reason: String) {
        let _ = self.aborted.set(reason);
        self.say(SAID_ALL);
    }

    fn say(&self, bits: u32) {
        if let Ok(said) = self.problems.word(4 * SAID) {
            said.fetch_or(bits, Ordering::Relaxed);
        }
    }
}

/// Ends the waits of the calls for other ranks. The check names the rank that died.
impl Abort for Experts {
    type Error = Error;

    fn abort(&self, reason: &str) {
        if self.handle.patience != 0 {
            self.engine.end(reason.to_owned());
        }
        self.engine.scratch.abort(reason);
    }

    fn check(&self) -> Result<()> {
        let failed = |error| Error::Failed { rank: self.rank_in_job(), source: Box::new(error) };
        // If calls survive a loss, kernels report no wait that ended for it, and who aborts all is this object.
        match self.engine.aborted.get() {
            Some(reason) => Err(failed(CoreError::Aborted { reason: reason.clone() }.into())),
            None => self.engine.scratch.check().map_err(failed),
        }
    }

    fn peers(&self) -> Vec<String> {
        self.engine.scratch.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.engine.scratch.waits()
    }
}
