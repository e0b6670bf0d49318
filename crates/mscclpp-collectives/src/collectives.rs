//! The collectives of one rank: calls in, launches out.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mscclpp::{
    Communicator, DeviceBuffer, Event, Gpu, Kernel, KernelArgs, LaunchConfig, MemoryChannel, Module, Stream,
    errors::CoreError,
    gpu::{Abort, KernelWait, Owner, PinnedBuffer},
};
use parking_lot::Mutex;

use crate::{
    CollectivesBuilder, DataType, Error, Kind, ReduceOp, Request, Result, Selector, Way,
    handle::{CollectiveCall, CollectiveHandle, CollectiveSends, LINE, Message, Segment},
    messages::Messages,
    plan::{Plan, Planned, TWO_STEPS_MIN, plan},
    scratch::{LANES, Layout},
    select::{Choice, Devices, Possible, Question, Shape},
    setup::Group,
    signature::{described, signature},
};

/// The collectives of a rank with others on its host, each on a device of its own or several on one: as threads of
/// one process or as processes. Clones are the same.
///
/// Every rank makes the same calls in the same order, with the same counts, types, operations and roots; only
/// [send](Self::send) and [receive](Self::recv) are of two ranks alone. A call puts one kernel into a stream and
/// returns: it never waits for other ranks. Results are there when the stream has come so far. Calls of different
/// streams are done in the order in which they are made, which this sees to; graphs in which calls were captured, and
/// what else runs beside them, the program orders itself. Calls may be captured in graphs, and replayed any number of
/// times, as long as all ranks replay the same.
///
/// No memory need be registered. What a call is given lives until it is complete.
///
/// Bits do not depend on how a call was done: see [`ReduceOp`].
///
/// When a rank dies, the calls of all others end, and the next synchronize of their stream, or the next call, says
/// which. From then on, and after [`Collectives::abort`], nothing can be called any more.
///
/// ```
/// # #[cfg(feature = "cuda-ipc")]
/// # fn main() -> Result<(), mscclpp_collectives::Error> {
/// # use std::sync::Arc;
/// use mscclpp::prelude::*;
/// use mscclpp_collectives::{Collectives, DeviceSlice, ReduceOp};
///
/// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<(), mscclpp_collectives::Error> {
/// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Host));
/// # let rank = comm.bootstrap().rank();
/// let gpu = comm.context().gpu(rank)?;
/// let collectives = Collectives::new(&comm, &gpu)?;
/// let stream = gpu.stream()?;
///
/// let numbers = DeviceSlice::<f32>::new(&gpu.allocate(4096)?)?;
/// numbers.write(&[1.0 + rank as f32; 1024])?;
/// collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)?;
/// collectives.synchronize(&stream)?;
/// assert_eq!(numbers.read()?, [3.0; 1024]);
/// # comm.bootstrap().barrier()?;
/// # Ok(())
/// # }));
/// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "cuda-ipc"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Collectives {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) group: Group,
    pub(crate) layout: Layout,
    pub(crate) kernels: Kernels,
    pub(crate) handle: CollectiveHandle,
    /// See [`Counters`].
    pub(crate) counters: Counters,
    /// The scratch.
    pub(crate) memory: DeviceBuffer,
    /// See `CollectiveHandle`.
    pub(crate) mismatch: PinnedBuffer<AtomicU32>,
    pub(crate) check_calls: bool,
    pub(crate) channels: Vec<MemoryChannel>,
    pub(crate) owner: Owner,
    /// Whether lines of 128 bytes arrive whole between all ranks.
    pub(crate) lines: bool,
    pub(crate) devices: Devices,
    pub(crate) selector: Arc<dyn Selector>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tag: u32,
    /// Held while a call is put into its stream, so that calls have one order.
    pub(crate) order: Mutex<Order>,
}

/// Words of the device's own: an epoch for each block, the counts of messages, and what a barrier moves.
pub(crate) struct Counters {
    pub(crate) buffer: DeviceBuffer,
    messages: u64,
    barrier: u64,
}

impl Counters {
    pub(crate) fn new(gpu: &Gpu, layout: &Layout) -> Result<Self> {
        let messages = 8 * u64::from(layout.slots);
        let barrier = messages + 8 * layout.ranks * 2 * u64::from(LANES);
        // Fresh memory is zero.
        let buffer = gpu.allocate(barrier + 8 * (1 + layout.ranks))?;
        Ok(Self { buffer, messages, barrier })
    }
}

/// What the next call comes after.
#[derive(Default)]
pub(crate) enum Order {
    #[default]
    Nothing,
    /// All that is in this stream.
    Stream(Stream),
    /// This event, recorded in a stream of others, which may be gone.
    Event(Event),
}

impl Order {
    /// Makes later work in `stream` come after the last call.
    fn before(&self, gpu: &Gpu, stream: &Stream) -> Result<()> {
        match self {
            Self::Nothing => {}
            Self::Stream(last) if last.is(stream) => {}
            // A capture cannot wait for what is outside of it, nor others for what is inside.
            _ if stream.is_capturing()? => {}
            Self::Stream(last) => {
                if !last.is_capturing()? {
                    let event = gpu.event(false)?;
                    last.record(&event)?;
                    stream.wait_event(&event)?;
                }
            }
            Self::Event(event) => stream.wait_event(event)?,
        }
        Ok(())
    }

    /// The last call is in `stream`.
    fn after(&mut self, gpu: &Gpu, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            return Ok(());
        }
        *self = if stream.is_foreign() {
            let event = gpu.event(false)?;
            stream.record(&event)?;
            Self::Event(event)
        } else {
            Self::Stream(stream.clone())
        };
        Ok(())
    }
}

/// The kernels of `collectives.cu`.
pub(crate) struct Kernels {
    /// By [`Form`] and [`Words`].
    forms: [[Option<Kernel>; 5]; 5],
    messages: Kernel,
}

/// What is done, and by which way.
#[derive(Clone, Copy)]
enum Form {
    ExchangePackets,
    ExchangeLines,
    ExchangePieces,
    AllReduceLines,
    AllReducePieces,
}

/// What becomes of what comes.
#[derive(Clone, Copy, PartialEq)]
enum Words {
    Move,
    Any,
    F16Sum,
    Bf16Sum,
    F32Sum,
}

const FORMS: [&str; 5] =
    ["exchange_packets", "exchange_lines", "exchange_pieces", "all_reduce_lines", "all_reduce_pieces"];
const WORDS: [&str; 5] = ["move", "any", "f16_sum", "bf16_sum", "f32_sum"];

impl Kernels {
    pub(crate) fn load(module: &Module) -> Result<Self> {
        let mut forms: [[Option<Kernel>; 5]; 5] = Default::default();
        for (form, kernels) in FORMS.iter().zip(&mut forms) {
            for (words, kernel) in WORDS.iter().zip(kernels) {
                if !(form.starts_with("all_reduce") && *words == "move") {
                    *kernel = Some(module.kernel(&format!("{form}_{words}"))?);
                }
            }
        }
        Ok(Self { forms, messages: module.kernel("move_messages")? })
    }

    fn of(&self, choice: Choice, words: Words) -> Result<&Kernel> {
        let form = match (choice.way, choice.two_steps) {
            (Way::Packets, _) => Form::ExchangePackets,
            (Way::Lines, false) => Form::ExchangeLines,
            (Way::Lines, true) => Form::AllReduceLines,
            (Way::Pieces, false) => Form::ExchangePieces,
            (Way::Pieces, true) => Form::AllReducePieces,
        };
        let kernel = self.forms[form as usize][words as usize].as_ref();
        kernel.ok_or_else(|| Error::InvalidArgument(format!("nothing is moved in two steps: {choice:?}")))
    }
}

impl Words {
    fn of(op: Option<ReduceOp>, data_type: DataType) -> Self {
        match (op, data_type) {
            (None, _) => Self::Move,
            (Some(ReduceOp::Sum), DataType::F16) => Self::F16Sum,
            (Some(ReduceOp::Sum), DataType::Bf16) => Self::Bf16Sum,
            (Some(ReduceOp::Sum), DataType::F32) => Self::F32Sum,
            _ => Self::Any,
        }
    }
}

impl Collectives {
    /// Those of all ranks of `comm`, on `gpu`, with the usual options. Every rank makes this call; it blocks until
    /// all do.
    ///
    /// # Errors
    /// As [`CollectivesBuilder::connect`].
    pub fn new(comm: &Communicator, gpu: &Gpu) -> Result<Self> {
        Self::builder(comm, gpu).connect()
    }

    /// With options, or of some ranks only.
    pub fn builder<'a>(comm: &'a Communicator, gpu: &'a Gpu) -> CollectivesBuilder<'a> {
        CollectivesBuilder::new(comm, gpu)
    }

    pub(crate) fn of(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// This rank's number among those that take part.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.group.rank
    }

    /// How many ranks take part.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.inner.group.ranks.len()
    }

    /// The device of this rank.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// How much device memory it takes on this device, in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.inner.layout.total + self.inner.counters.buffer.len()
    }

    /// Groups of these ranks: those that give the same `color` become one, in the order of their `key`, ranks with
    /// the same key in their present order. A rank without a color gets none. Every rank makes this call; it blocks
    /// until all do. Other options are as here.
    ///
    /// # Errors
    /// As [`CollectivesBuilder::connect`].
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        let inner = &self.inner;
        let own = [color.map_or(0, |color| 1 + u64::from(color)), u64::from(key.cast_unsigned())];
        let all = inner.group.all_gather(&own)?;
        if color.is_none() {
            return Ok(None);
        }
        let key = |r: usize| all[r].get(1).map(|key| *key as u32 as i32);
        let mut members: Vec<usize> = (0..all.len()).filter(|r| all[*r].first() == own.first()).collect();
        members.sort_by_key(|r| key(*r));
        let mut builder = Self::builder(&inner.comm, &inner.gpu)
            .ranks(members.iter().map(|r| inner.group.ranks[*r]))
            .max_blocks(inner.layout.slots)
            .scratch(inner.layout.budget)
            .tag(inner.tag)
            .check_calls(inner.check_calls)
            .shared_selector(inner.selector.clone());
        if let Some(timeout) = inner.timeout {
            builder = builder.timeout(timeout);
        }
        builder.connect().map(Some)
    }

    /// Puts collectives into `stream`, in the order in which they are given; [sends](Kind::Send) and
    /// [receives](Kind::Recv) all together, after the others. So a rank may both send to and receive from a peer, in
    /// whatever order the two give these. Does not block on other ranks.
    ///
    /// # Safety
    /// Addresses are memory that this rank's device reaches, of the size that follows from kind, count and type, and
    /// live until the calls are complete; of captured ones, as long as the graph. Results overlap nothing else, but
    /// as [`Request::recv`] says.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for requests that can never be right, and a stream of another device: then nothing
    /// is put into the stream. [`Error::Failed`] after a rank was lost or these collectives were aborted.
    /// [`Error::Below`] if a launch fails; other ranks may then wait for this one until it leaves or aborts.
    pub unsafe fn enqueue(&self, requests: &[Request<'_>], stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.submit(requests, stream, &[]) }
    }

    /// As [`Self::enqueue`], and keeps `buffers` until the calls are complete.
    ///
    /// # Safety
    /// As there; memory in `buffers` lives long enough.
    pub(crate) unsafe fn submit(
        &self,
        requests: &[Request<'_>],
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let inner = &*self.inner;
        self.check_usable()?;
        if stream.gpu().id() != inner.gpu.id() || stream.gpu().platform() != inner.gpu.platform() {
            return Err(Error::InvalidArgument(format!(
                "a stream of {} for the collectives of {}",
                stream.gpu(),
                inner.gpu
            )));
        }
        let mut messages = Messages::new(self.n_ranks());
        let mut exchanges = Vec::with_capacity(requests.len());
        for request in requests {
            match inner.planned(request)? {
                Planned::Nothing => {}
                Planned::Exchange(plan) => exchanges.push((plan, signature(request))),
                Planned::Message { receives, peer, memory, bytes } => {
                    messages.add(peer, receives, Message { memory, bytes });
                }
            }
        }
        let own = messages.own(self.rank())?;

        let mut order = inner.order.lock();
        order.before(&inner.gpu, stream)?;
        for (plan, signature) in exchanges {
            // SAFETY: the caller's promise.
            unsafe { inner.exchange(&plan, signature, stream, buffers)? };
        }
        for (from, to) in own {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(to.memory, from.memory, from.bytes)? };
        }
        for batch in messages.batches(self.rank()) {
            let layout = &inner.layout;
            let call = CollectiveSends {
                messages: batch,
                counts: inner.counters.buffer.ptr().add(inner.counters.messages),
                signals: layout.message_signals,
                places: layout.messages,
                piece: layout.message_piece,
                lanes: LANES,
                reserved: 0,
            };
            let blocks = inner.handle.ranks * 2 * LANES;
            let threads = if inner.devices == Devices::Host { 32 } else { 512 };
            let args = inner.args(buffers).with(call);
            // SAFETY: these are its parameters; the caller answers for the memory.
            unsafe { inner.kernels.messages.launch(stream, LaunchConfig::linear(blocks, threads), &args)? };
        }
        order.after(&inner.gpu, stream)
    }

    /// How a collective would be done: which way, and with how many blocks, each of which takes a multiprocessor.
    /// None if no kernel is needed, and for messages between two ranks.
    ///
    /// # Errors
    /// As [`Collectives::enqueue`], for requests that can never be right.
    pub fn choice(&self, request: &Request<'_>) -> Result<Option<Choice>> {
        let inner = &*self.inner;
        Ok(match inner.planned(request)? {
            Planned::Exchange(plan) if self.n_ranks() > 1 => Some(inner.choose(&plan, self.n_ranks())),
            _ => None,
        })
    }

    /// Waits until all work of `stream` is complete, and says what became of its collectives. With
    /// [`CollectivesBuilder::timeout`], it aborts them after that time.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank was lost, or somebody aborted: results are not valid. Errors of the work of the
    /// stream.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let done = match self.inner.timeout {
            Some(timeout) => stream.synchronize_or_abort(timeout, self),
            None => stream.synchronize().map_err(Error::from),
        };
        // What failed is known here better than below.
        self.check_waits()?;
        done
    }

    /// That the waits of complete calls got what they waited for. A rank that is done may have left.
    fn check_waits(&self) -> Result<()> {
        self.check_mismatch()?;
        self.inner
            .channels
            .iter()
            .try_for_each(|channel| Abort::check(channel).map_err(|error| self.failed(error)))
    }

    /// That no rank made another call.
    fn check_mismatch(&self) -> Result<()> {
        let inner = &*self.inner;
        // Pairs with the kernel's release, in front of which it has seen the other's words.
        let found = inner.mismatch.word(0)?.load(Ordering::Acquire);
        let Some(other) = (found & 0xffff).checked_sub(1) else { return Ok(()) };
        let said = |of: u32| -> Result<String> {
            let mut words = [0u64; 2];
            let index = 2 * u64::from(of) + u64::from(found >> 16);
            inner.memory.read_params(inner.layout.checks + index * LINE, &mut words)?;
            Ok(described(words))
        };
        Err(Error::Mismatch {
            rank: inner.group.ranks[inner.group.rank],
            other: inner.group.ranks[other as usize],
            ours: said(inner.handle.rank)?,
            theirs: said(other)?,
        })
    }

    fn failed(&self, error: CoreError) -> Error {
        let source = Box::new(self.inner.comm.explain(error));
        Error::Failed { rank: self.inner.comm.bootstrap().rank(), source }
    }

    /// Gives up: calls that wait for other ranks end within about a millisecond, and no more can be made. Does not
    /// block. Other ranks are not told; [`Communicator::abort`] tells them.
    pub fn abort(&self, reason: &str) {
        self.inner.channels.iter().for_each(|channel| channel.semaphore().abort(reason));
    }

    /// That no rank is lost, and nobody has aborted them. A rank that has left may have sent all that is still to come.
    fn check_usable(&self) -> Result<()> {
        self.check_mismatch()?;
        for channel in &self.inner.channels {
            match channel.semaphore().failure() {
                None => {}
                Some(CoreError::PeerClosed { .. }) => {
                    Abort::check(channel).map_err(|error| self.failed(error))?;
                }
                Some(failure) => return Err(self.failed(failure)),
            }
        }
        Ok(())
    }
}

impl Inner {
    fn planned(&self, request: &Request<'_>) -> Result<Planned> {
        let (rank, ranks) = (self.group.rank, self.group.ranks.len());
        if request.kind != Kind::Barrier {
            return plan(request, rank, ranks);
        }
        // A word from each, into a word for each.
        let words = self.counters.buffer.ptr().add(self.counters.barrier);
        let all_gather = Request {
            kind: Kind::AllGather,
            send: words,
            recv: words.add(8),
            count: 1,
            data_type: DataType::U64,
        };
        plan(&all_gather, rank, ranks)
    }

    fn args(&self, buffers: &[&DeviceBuffer]) -> KernelArgs {
        KernelArgs::new()
            .with_owner(self.owner.clone())
            .keeping_each(buffers.iter().copied())
            .with(self.handle)
    }

    /// # Safety
    /// The plan's memory lives until the launch is complete, and the device reaches it.
    unsafe fn exchange(
        &self,
        plan: &Plan,
        signature: [u64; 2],
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let ranks = self.group.ranks.len();
        let words = Words::of(plan.op, plan.data_type);
        let scale = plan.op.and_then(|op| op.scale(plan.data_type));
        if ranks == 1 && scale.is_none() {
            let Segment { send, recv, recv_bytes, .. } = plan.segments[0];
            if send != recv && recv_bytes > 0 {
                // SAFETY: the caller's promise.
                unsafe { stream.copy(recv, send, recv_bytes)? };
            }
            return Ok(());
        }
        let choice = self.choose(plan, ranks);
        let stepped = if choice.two_steps { plan.in_two_steps(ranks) } else { None };
        let plan = stepped.as_ref().unwrap_or(plan);
        let call = CollectiveCall {
            segments: plan.segments,
            most_bytes: plan.most_bytes.unwrap_or(0).next_multiple_of(16),
            piece: self.layout.piece(plan.most_bytes, choice.blocks, choice.two_steps),
            data_type: plan.data_type as u32,
            op: plan.op.map_or(0, ReduceOp::number),
            scale: scale.unwrap_or(0),
            scaled: scale.is_some().into(),
            one_way: plan.one_way.into(),
            checked: self.check_calls.into(),
            reserved: 0,
            signature,
        };
        let args = self.args(buffers).with(call);
        let config = LaunchConfig::linear(choice.blocks, choice.threads);
        let kernel = self.kernels.of(choice, words)?;
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { kernel.launch(stream, config, &args)? };
        Ok(())
    }

    fn choose(&self, plan: &Plan, ranks: usize) -> Choice {
        let most = plan.most_bytes.map(|most| most.next_multiple_of(16));
        let fits = |way, two_steps: bool| match (most, plan.in_two_steps(ranks).filter(|_| two_steps)) {
            (_, Some(parts)) => self.layout.fits(way, parts.most_bytes.unwrap_or(0), true),
            (Some(most), None) if !two_steps => self.layout.fits(way, most, false),
            _ => false,
        };
        let large = ranks > 1 && most.is_some_and(|most| most >= TWO_STEPS_MIN);
        let possible = Possible {
            packets: fits(Way::Packets, false),
            lines: self.lines && fits(Way::Lines, false),
            lines_in_two_steps: self.lines && large && fits(Way::Lines, true),
            pieces_in_two_steps: large && plan.whole.is_some(),
        };
        let shape = match (plan.whole, plan.one_way) {
            (Some(_), _) => Shape::AllReduce,
            (None, true) => Shape::Rooted,
            (None, false) => Shape::Exchange,
        };
        let question = Question {
            shape,
            reduces: plan.op.is_some(),
            bytes: most.unwrap_or(u64::MAX),
            ranks,
            possible,
            max_blocks: self.layout.slots,
            devices: self.devices,
        };
        if ranks == 1 {
            // Nothing travels; the kernel of packets has no limit then.
            return Choice { way: Way::Packets, two_steps: false, blocks: self.layout.slots, threads: 256 };
        }
        self.selector.choose(&question).mended(&question)
    }
}

/// Aborts the waits of its calls for other ranks.
impl Abort for Collectives {
    type Error = Error;

    fn abort(&self, reason: &str) {
        Self::abort(self, reason);
    }

    fn check(&self) -> Result<()> {
        self.check_waits()
    }

    fn peers(&self) -> Vec<String> {
        self.inner.owner.peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.inner.owner.waits()
    }
}

impl fmt::Debug for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collectives")
            .field("rank", &self.rank())
            .field("ranks", &self.inner.group.ranks)
            .field("gpu", &self.inner.gpu.to_string())
            .finish_non_exhaustive()
    }
}
