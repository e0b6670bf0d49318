//! The calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp::{
    DeviceBuffer, DevicePtr, Gpu, Kernel, KernelArgs, LaunchConfig, Module, Platform,
    engine::{CallOrder, DeviceRoom, Group, Scratch},
    gpu::{Abort, KernelArgument, KernelWait, Owner, PinnedBuffer, Stream},
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait};

use crate::{
    Combine, Dispatch, Error, ExpertsBuilder, Layout, Memory, Result, Routed,
    handle::{EpCombine, EpDispatch, EpHandle, PARTS},
    routed::{Pool, next_number},
    scratch::{self, PROBLEM_BYTES, alignment_of},
};

/// The experts of a group of ranks, as one rank has them. Calls are put into streams, in one order on all ranks, and may be
/// captured.
#[derive(Debug)]
pub struct Experts {
    gpu: Gpu,
    group: Group,
    /// The bytes of the rows that dispatch is given, and of those that travel.
    given: Vec<u64>,
    travelling: Vec<u64>,
    exact: bool,
    micro_batches: usize,
    timeout: Option<Duration>,
    handle: EpHandle,
    scratch: Scratch,
    problems: PinnedBuffer<AtomicU32>,
    dispatch: Kernel,
    combine: Kernel,
    release: Kernel,
    config: LaunchConfig,
    shared_bytes: u32,
    tables: Pool,
    table_bytes: u64,
    order: CallOrder,
    owner: Owner,
    number: u32,
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
        let [dispatch, combine, release] =
            ["ep_dispatch", settings.payload.number_type.kernel(), "ep_release"]
                .map(|name| module.kernel(name));
        let (dispatch, combine, release) = (dispatch?, combine?, release?);
        let threads = if gpu.platform() == Platform::Sim { 64 } else { 1024 };
        // Below MOST_SHARED.
        let shared_bytes = settings.shared_bytes(n) as u32;
        let room = DeviceRoom::new(&gpu, settings.calls_at_once)?;
        for (kernel, shared) in [(&dispatch, shared_bytes), (&combine, 0)] {
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
        Ok(Self {
            gpu,
            group,
            given: settings.payload.given(),
            travelling: settings.payload.travelling(),
            exact: settings.exact,
            micro_batches: settings.micro_batches as usize,
            timeout,
            handle,
            scratch,
            problems,
            dispatch,
            combine,
            release,
            config,
            shared_bytes,
            tables,
            table_bytes: layout.table_bytes,
            order: CallOrder::default(),
            owner,
            number: next_number(),
            _room: room,
        })
    }

    /// This rank's number in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.group.ranks().len()
    }

    /// The number of this rank's experts.
    #[must_use]
    pub fn n_local(&self) -> usize {
        self.handle.local as usize
    }

    /// The device memory that this rank took, in bytes, without the tables of routings.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.scratch.memory().len()
    }

    /// Sends each token once to every rank that has an expert of it, and puts what comes into the layout. All ranks make this
    /// call, with the same micro-batch, and each with its own layout. It does not block; the routing may be used as soon as it
    /// returns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory that does not fit; [`Error::TooManyTokens`] for more than the capacity, which is an
    /// error of the other ranks, too, when they look; what is wrong with earlier calls, as [`Self::check`] finds it.
    pub fn dispatch(&self, dispatch: &Dispatch, stream: &Stream) -> Result<Routed> {
        self.check()?;
        self.check_micro_batch(dispatch.micro_batch)?;
        let Dispatch { tokens, ids, weights, rows, .. } = dispatch;
        let (count, choices) = (*tokens as u64, u64::from(self.handle.top_k));
        let refused = count > u64::from(self.handle.capacity);
        let sent = if refused { 0 } else { count };
        let tables = self.tables.take(&self.gpu, self.table_bytes)?;
        let mut call = self.call(&tables, sent, rows, dispatch.layout, &dispatch.out)?;
        call.micro_batch = dispatch.micro_batch as u32;
        call.refused = refused.into();
        call.zero = (dispatch.zero_rest && dispatch.layout != Layout::Rank).into();
        let id_bytes = dispatch.id_type.size();
        call.id_bytes = id_bytes as u32;
        call.ids = ids.at_least("topk_ids", sent * choices * id_bytes, id_bytes)?;
        call.weights = match weights {
            Some(weights) => weights.at_least("topk_weights", sent * choices * 4, 4)?,
            None => DevicePtr::NULL,
        };
        let all = u64::from(self.handle.ranks) * u64::from(self.handle.capacity);
        let of_layout = if dispatch.layout == Layout::Rank { all } else { call.out_rows };
        for (at, memory, what, row, alignment) in [
            (&mut call.out_ids, &dispatch.ids_into, "the memory for ids", choices * id_bytes, id_bytes),
            (&mut call.out_weights, &dispatch.weights_into, "the memory for weights", choices * 4, 4),
            (&mut call.out_sources, &dispatch.sources_into, "the memory for sources", 8, 4),
        ] {
            if let Some(memory) = memory {
                *at = memory.at_least(what, of_layout * row, alignment)?;
            }
        }
        let along = [&dispatch.ids_into, &dispatch.weights_into, &dispatch.sources_into];
        let memories = [ids].into_iter().chain(weights).chain(rows).chain(&dispatch.out);
        let memories = memories.chain(along.into_iter().flatten());
        self.launch_dispatch(call, &tables, memories, stream)?;
        if refused {
            let (rank, capacity) = (self.rank_in_job(), self.handle.capacity as usize);
            return Err(Error::TooManyTokens { rank, capacity });
        }
        Ok(Routed {
            tables,
            tokens: *tokens,
            layout: dispatch.layout,
            micro_batch: dispatch.micro_batch,
            out_rows: call.out_rows,
            of: self.number,
            handle: self.handle,
            scratch: self.handle.scratch[self.rank()]
                .add(dispatch.micro_batch as u64 * self.handle.places.micro_batch_bytes),
        })
    }

    /// Sends other rows the way of an earlier dispatch: the tensors of this rank's tokens, and the memory for those that come.
    /// The layout is that of the routing. All ranks make this call, each with its own routing of the same dispatch.
    ///
    /// # Errors
    /// The same as of [`Self::dispatch`]; [`Error::InvalidArgument`] for a routing of other experts.
    pub fn dispatch_again(
        &self,
        routed: &Routed,
        rows: &[Memory],
        out: &[Memory],
        stream: &Stream,
    ) -> Result<()> {
        self.check()?;
        self.check_routed(routed)?;
        let mut call = self.call(&routed.tables, routed.tokens as u64, rows, routed.layout, out)?;
        call.micro_batch = routed.micro_batch as u32;
        call.again = 1;
        self.launch_dispatch(call, &routed.tables, rows.iter().chain(out), stream)
    }

    /// Brings the experts' rows of each token back to the token's rank, and sums them. All ranks make this call, each with its
    /// own routing of the same dispatch. It also gives the rows of that dispatch back, if its layout is [`Layout::Rank`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory that does not fit, a routing of other experts, or an exact combine that is not
    /// set up; what is wrong with earlier calls, as [`Self::check`] finds it.
    pub fn combine(&self, combine: &Combine<'_>, stream: &Stream) -> Result<()> {
        self.check()?;
        let Combine { routed, rows, weights, bias, out, exact } = combine;
        self.check_routed(routed)?;
        let one_row = matches!(routed.layout, Layout::Rank | Layout::Token);
        if *exact && (one_row || !self.exact) {
            let why = if one_row {
                "Layout::Expert or Layout::Flat"
            } else {
                "experts that are set up with exact(true)"
            };
            return Err(Error::InvalidArgument(format!("an exact combine is for {why}")));
        }
        let (tokens, row) = (routed.tokens as u64, u64::from(self.handle.result_bytes));
        let alignment = alignment_of(row);
        let of_layout = match routed.layout {
            Layout::Rank => u64::from(self.handle.ranks * self.handle.capacity) * row,
            Layout::Expert => u64::from(self.handle.ranks * self.handle.capacity * self.handle.local) * row,
            // The dispatch has put rows anywhere into as many.
            Layout::Token | Layout::Flat { .. } => routed.out_rows * row,
        };
        let address = |memory: &Option<Memory>, what: &str, bytes: u64, alignment: u64| match memory {
            Some(memory) => memory.at_least(what, bytes, alignment),
            None => Ok(DevicePtr::NULL),
        };
        let call = EpCombine {
            rows: rows.at_least("the rows of combine", of_layout, alignment)?,
            tables: routed.tables.ptr(),
            weights: address(weights, "topk_weights", tokens * u64::from(self.handle.top_k) * 4, 4)?,
            bias: address(bias, "bias", tokens * row, alignment)?,
            out: out.at_least("the result of combine", tokens * row, alignment)?,
            out_rows: routed.out_rows,
            tokens: tokens as u32,
            micro_batch: routed.micro_batch as u32,
            exact: (*exact).into(),
            one_row: one_row.into(),
            late: weights.is_some().into(),
            layout: routed.layout.number(),
        };
        let memories = [rows, out].into_iter().chain(weights).chain(bias);
        let args = self.args(&routed.tables, memories).with(self.handle).with(call);
        self.order.put(stream, || {
            // SAFETY: these are the kernel's parameters; all its blocks fit on the device beside other calls; buffers are kept by
            // the arguments, and for other memory the caller of `Memory::from_raw` answers.
            unsafe { self.combine.launch(stream, self.config, &args) }.map_err(Error::from)
        })
    }

    /// Gives the rows of a dispatch of [`Layout::Rank`] back without a combine, when the work before it in the stream is
    /// complete. All ranks may write there then. Without effect for other layouts, and if there was a dispatch of this
    /// micro-batch since.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a routing of other experts.
    pub fn release(&self, routed: &Routed, stream: &Stream) -> Result<()> {
        self.check_routed(routed)?;
        let args = self
            .args(&routed.tables, [])
            .with(self.handle)
            .with(&*routed.tables)
            .with(routed.micro_batch as u32);
        self.order.put(stream, || {
            // SAFETY: these are the kernel's parameters.
            unsafe { self.release.launch(stream, LaunchConfig::linear(1, 32), &args) }.map_err(Error::from)
        })
    }

    /// Waits until the work in the stream is complete, and checks the calls. If the time-out of the set-up ends first, it ends
    /// the waits of this rank's calls and says which rank they wait for.
    ///
    /// # Errors
    /// [`Error::Failed`] if a wait for another rank ended early; what [`Self::check`] finds.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let done = match self.timeout {
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
                format!("calls of experts, which may wait for {}", self.scratch.peers().join(", "))
            });
        }
        Ok(stream.synchronize()?)
    }

    /// Checks the calls that are complete. Does not block.
    ///
    /// # Errors
    /// [`Error::Failed`], and then always; once each: [`Error::TooManyTokens`] if a rank refused its tokens,
    /// [`Error::NoExpert`], [`Error::Dropped`].
    pub fn check(&self) -> Result<()> {
        Abort::check(self)?;
        let problem =
            |which: u64| -> Result<u32> { Ok(self.problems.word(4 * which)?.swap(0, Ordering::Relaxed)) };
        if let Some(rank) = problem(2)?.checked_sub(1) {
            let rank = self.group.ranks().get(rank as usize).copied().unwrap_or(rank as usize);
            return Err(Error::TooManyTokens { rank, capacity: self.handle.capacity as usize });
        }
        if let Some(token) = problem(0)?.checked_sub(1) {
            return Err(Error::NoExpert { token: token as usize, experts: self.handle.n_experts as usize });
        }
        if problem(1)? != 0 { Err(Error::Dropped) } else { Ok(()) }
    }

    fn rank_in_job(&self) -> usize {
        self.group.ranks()[self.group.rank()]
    }

    fn check_micro_batch(&self, micro_batch: usize) -> Result<()> {
        if micro_batch < self.micro_batches {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "micro-batch {micro_batch} of experts that are set up with micro_batches({})",
            self.micro_batches
        )))
    }

    fn check_routed(&self, routed: &Routed) -> Result<()> {
        if routed.of == self.number {
            return Ok(());
        }
        Err(Error::InvalidArgument("a routing of other experts: give one that these have made".to_owned()))
    }

    /// The parameter of a dispatch of so many tokens, with the memory of its tensors checked.
    fn call(
        &self,
        tables: &DeviceBuffer,
        tokens: u64,
        rows: &[Memory],
        layout: Layout,
        out: &[Memory],
    ) -> Result<EpDispatch> {
        let mut call = EpDispatch {
            ids: DevicePtr::NULL,
            weights: DevicePtr::NULL,
            rows: [DevicePtr::NULL; PARTS],
            tables: tables.ptr(),
            out: [DevicePtr::NULL; PARTS],
            out_ids: DevicePtr::NULL,
            out_weights: DevicePtr::NULL,
            out_sources: DevicePtr::NULL,
            out_rows: u64::MAX,
            tokens: tokens as u32,
            id_bytes: 4,
            layout: layout.number(),
            alignment: 1,
            micro_batch: 0,
            again: 0,
            refused: 0,
            zero: 0,
        };
        let given = &self.given;
        if rows.len() != given.len() {
            let (gave, needed) = (rows.len(), given.len());
            return Err(Error::InvalidArgument(format!("dispatch takes {needed} tensors, and got {gave}")));
        }
        for (i, ((at, memory), bytes)) in call.rows.iter_mut().zip(rows).zip(given).enumerate() {
            let what = format_args!("tensor {i} of dispatch");
            *at = memory.at_least(what, tokens * bytes, alignment_of(*bytes))?;
        }
        if layout == Layout::Rank {
            return Ok(call);
        }
        let coming = &self.travelling;
        if out.len() != coming.len() {
            let (gave, needed) = (out.len(), coming.len());
            return Err(Error::InvalidArgument(format!(
                "{layout:?} needs memory for {needed} tensors that come, and got {gave}"
            )));
        }
        if let Layout::Flat { alignment } = layout {
            if alignment == 0 {
                return Err(Error::InvalidArgument("Layout::Flat with an alignment of 0".to_owned()));
            }
            call.alignment = alignment;
        }
        for (i, ((at, memory), bytes)) in call.out.iter_mut().zip(out).zip(coming).enumerate() {
            call.out_rows = call.out_rows.min(memory.bytes() / bytes);
            let least = match layout {
                Layout::Expert => {
                    u64::from(self.handle.local * self.handle.ranks * self.handle.capacity) * bytes
                }
                _ => 0,
            };
            let what = format_args!("tensor {i} that comes to dispatch");
            *at = memory.at_least(what, least, alignment_of(*bytes))?;
        }
        if layout == Layout::Expert {
            call.out_rows = u64::from(self.handle.local * self.handle.ranks * self.handle.capacity);
        }
        Ok(call)
    }

    fn args<'a>(
        &self,
        tables: &Arc<DeviceBuffer>,
        memories: impl IntoIterator<Item = &'a Memory>,
    ) -> KernelArgs {
        let buffers = memories.into_iter().filter_map(|memory| memory.buffer.as_ref());
        // The pool sees by the reference that the tables are in use.
        KernelArgs::new().with_owner(self.owner.clone()).keeping(tables.clone()).keeping_each(buffers)
    }

    fn launch_dispatch<'a>(
        &self,
        call: EpDispatch,
        tables: &Arc<DeviceBuffer>,
        memories: impl IntoIterator<Item = &'a Memory>,
        stream: &Stream,
    ) -> Result<()> {
        let args = self.args(tables, memories).with(self.handle).with(call);
        let config = LaunchConfig { shared_bytes: self.shared_bytes, ..self.config };
        self.order.put(stream, || {
            // SAFETY: as in `combine`.
            unsafe { self.dispatch.launch(stream, config, &args) }.map_err(Error::from)
        })
    }
}

/// Ends the waits of the calls for other ranks. The check names the rank that died.
impl Abort for Experts {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.scratch.abort(reason);
    }

    fn check(&self) -> Result<()> {
        self.scratch
            .check()
            .map_err(|error| Error::Failed { rank: self.rank_in_job(), source: Box::new(error) })
    }

    fn peers(&self) -> Vec<String> {
        self.scratch.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.scratch.waits()
    }
}
