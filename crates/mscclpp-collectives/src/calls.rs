//! From a plan to a launch.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use mscclpp::{
    Communicator, DeviceBuffer, DevicePtr, Gpu, KernelArgs, LaunchConfig, MemoryChannel, Platform, Semaphore,
    Stream,
    gpu::{Abort, Owner, PinnedBuffer},
};
use parking_lot::Mutex;

use crate::{
    Algorithm, DataType, Kind, Protocol, ReduceOp, Request, Result, Selector,
    communicators::Counted,
    copy_engines::Places,
    group::Group,
    handle::{CollectiveCall, CollectiveHandle, CollectiveSends, Segment, WORDS_BEFORE},
    kernels::{Kernels, WordOperation},
    messages::Batch,
    nodes::Nodes,
    order::Order,
    plan::{Plan, Planned, TWO_STEPS_MIN, plan},
    ports::Ports,
    register::Registrations,
    scratch::{LANES, Layout},
    select::{Devices, Possible, Query, Selection, Shape, threads_with_room},
    signature::signature,
};

/// The shared memory of the kernel of bulk copies: a `BulkStage<>` of the headers for each of two warps.
const BULK_SHARED_BYTES: u32 = 2 * 98_432;

/// The state of a rank's collectives.
pub(crate) struct CollectivesState {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) group: Group,
    /// The most blocks of a call.
    pub(crate) max_blocks: u32,
    /// The most blocks that the program asked for, if it did: groups of these ranks ask for it, too.
    pub(crate) requested_max_blocks: Option<u32>,
    pub(crate) calls_at_once: u32,
    pub(crate) overlap: bool,
    pub(crate) scratch_bytes: u64,
    /// See [`Counters`].
    pub(crate) counters: Counters,
    pub(crate) check_calls: bool,
    pub(crate) owner: Owner,
    pub(crate) engine: Engine,
    pub(crate) selector: Arc<dyn Selector>,
    pub(crate) algorithms: Vec<Arc<dyn Algorithm>>,
    pub(crate) timeout: Option<Duration>,
    /// Why [`Collectives::abort`](crate::Collectives::abort) was called.
    pub(crate) aborted: OnceLock<String>,
    /// How many splits there were. Held while ranks say in which part they are.
    pub(crate) splits: Mutex<u64>,
    /// The name that the program gives to this rank's node, if it gives one.
    pub(crate) node: Option<String>,
    pub(crate) registrations: Registrations,
    /// This communicator, counted among those on its device.
    #[expect(dead_code, reason = "it counts while it lives")]
    pub(crate) counted: Counted,
    /// Held while a call is put into its stream, so that calls have one order.
    pub(crate) order: Mutex<Order>,
}

/// An engine carries out calls: by which means depends on how ranks reach each other.
pub(crate) enum Engine {
    /// Kernels write into each other's scratch.
    Memory(Box<Mapped>),
    Ports(Box<Ports>),
    /// The ranks are on several nodes.
    Nodes(Box<Nodes>),
}

/// The engine of a rank whose kernels reach the memory of the others.
pub(crate) struct Mapped {
    pub(crate) layout: Layout,
    pub(crate) kernels: Arc<Kernels>,
    pub(crate) handle: CollectiveHandle,
    /// The scratch.
    pub(crate) memory: DeviceBuffer,
    /// See `CollectiveHandle`.
    pub(crate) mismatch: PinnedBuffer<AtomicU32>,
    pub(crate) channels: Vec<MemoryChannel>,
    /// Whether packets of 128 bytes arrive whole between all ranks.
    pub(crate) ll128: bool,
    pub(crate) devices: Devices,
    /// The same as [`Query::max_blocks`].
    pub(crate) max_blocks: u32,
    pub(crate) max_threads: u32,
}

/// Words of the device's own: whether a launch gave up and a call runs (`CollectiveWords`), an epoch for each block, the counts
/// of messages, and what a barrier moves.
pub(crate) struct Counters {
    pub(crate) buffer: DeviceBuffer,
    messages: u64,
    barrier: u64,
}

impl Counters {
    pub(crate) fn new(gpu: &Gpu, ranks: usize, max_blocks: u32) -> Result<Self> {
        let messages = 8 * (WORDS_BEFORE + u64::from(max_blocks));
        let ranks = ranks as u64;
        let barrier = messages + 8 * ranks * 2 * u64::from(LANES);
        // Fresh memory is zero.
        let buffer = gpu.allocate(barrier + 8 * (1 + ranks))?;
        Ok(Self { buffer, messages, barrier })
    }

    pub(crate) fn epochs(&self) -> DevicePtr {
        self.buffer.ptr().add(8 * WORDS_BEFORE)
    }

    pub(crate) fn messages(&self) -> DevicePtr {
        self.buffer.ptr().add(self.messages)
    }

    /// A word to give, and behind it as many as there are ranks.
    pub(crate) fn barrier(&self) -> DevicePtr {
        self.buffer.ptr().add(self.barrier)
    }
}

impl CollectivesState {
    pub(crate) fn planned(&self, request: &Request<'_>) -> Result<Planned> {
        if let Engine::Nodes(nodes) = &self.engine {
            // Their calls are planned elsewhere; whether they can be is the same.
            return nodes.check(self, request).map(|()| Planned::Nothing);
        }
        let (rank, ranks) = (self.group.rank, self.group.ranks.len());
        if request.kind != Kind::Barrier {
            return plan(request, rank, ranks);
        }
        // A word from each, into a word for each.
        let words = self.counters.barrier();
        let all_gather = Request {
            kind: Kind::AllGather,
            send: words,
            recv: words.add(8),
            count: 1,
            data_type: DataType::U64,
        };
        plan(&all_gather, rank, ranks)
    }

    /// Returns empty arguments that keep what a launch needs, and `buffers`.
    pub(crate) fn keeping(&self, buffers: &[&DeviceBuffer]) -> KernelArgs {
        self.keep(KernelArgs::new(), buffers)
    }

    fn keep(&self, args: KernelArgs, buffers: &[&DeviceBuffer]) -> KernelArgs {
        args.with_owner(self.owner.clone()).keeping_each(buffers.iter().copied())
    }

    /// The semaphores through which it waits for others.
    pub(crate) fn semaphores(&self) -> Box<dyn Iterator<Item = &Semaphore> + '_> {
        match &self.engine {
            Engine::Memory(mapped) => Box::new(mapped.channels.iter().map(MemoryChannel::semaphore)),
            Engine::Ports(ports) => Box::new(ports.semaphores()),
            Engine::Nodes(nodes) => Box::new(nodes.semaphores()),
        }
    }

    /// Checks that the waits of complete calls got what they waited for.
    pub(crate) fn check_waits(&self) -> Result<(), mscclpp::Error> {
        match &self.engine {
            Engine::Memory(mapped) => {
                mapped.channels.iter().try_for_each(|channel| Ok(Abort::check(channel)?))
            }
            Engine::Ports(ports) => ports.check_waits(),
            Engine::Nodes(nodes) => nodes.check_waits(),
        }
    }

    /// Moves messages between pairs of ranks.
    ///
    /// # Safety
    /// Their memory lives until the launch is complete, and the device reaches it.
    pub(crate) unsafe fn move_messages(
        &self,
        messages: Batch,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let mapped = match &self.engine {
            Engine::Memory(mapped) => mapped,
            Engine::Ports(ports) => {
                // SAFETY: the caller's promise.
                return unsafe { ports.move_messages(self, messages, None, stream, buffers) };
            }
            Engine::Nodes(_) => unreachable!("nodes have messages of their own"),
        };
        let layout = &mapped.layout;
        let call = CollectiveSends {
            messages,
            counts: self.counters.messages(),
            signals: layout.message_signals,
            places: layout.messages,
            chunk: layout.message_chunk,
            lanes: LANES,
            reserved: 0,
        };
        let blocks = mapped.handle.ranks * 2 * LANES;
        let config =
            LaunchConfig::linear(blocks, threads_with_room(mapped.max_threads, blocks, self.threads()));
        let args = self.keeping(buffers).with(mapped.handle).with(call);
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { mapped.kernels.messages.launch(stream, config, &args)? };
        Ok(())
    }

    /// The most threads of a block that moves messages.
    pub(crate) fn threads(&self) -> u32 {
        if self.gpu.platform() == Platform::Sim { 32 } else { 512 }
    }

    /// `request` is what the plan is for; none for a step of something larger, which no [`Algorithm`] does.
    ///
    /// # Safety
    /// The plan's memory lives until the launch is complete, and the device reaches it.
    pub(crate) unsafe fn exchange(
        &self,
        request: Option<&Request<'_>>,
        plan: &Plan,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
    ) -> Result<()> {
        let ranks = self.group.ranks.len();
        if ranks == 1 && !plan.op.is_some_and(ReduceOp::scales) {
            let Segment { send, recv, recv_bytes, .. } = plan.segments[0];
            if send != recv && recv_bytes > 0 {
                // SAFETY: the caller's promise.
                unsafe { stream.copy(recv, send, recv_bytes)? };
            }
            return Ok(());
        }
        let mapped = match &self.engine {
            Engine::Memory(mapped) => mapped,
            Engine::Ports(ports) => {
                // SAFETY: the caller's promise.
                return unsafe { ports.exchange(self, plan, stream, buffers) };
            }
            Engine::Nodes(_) => unreachable!("nodes have steps of their own"),
        };
        let engines = self.copy_engines(plan);
        let query = self.query(mapped, plan, engines.is_some());
        let signature = request.map_or([0; 2], signature);
        let own = request.filter(|_| ranks > 1).and_then(|it| self.own_launch(mapped, it, &query));
        if let Some((launch, selection)) = own {
            let call = self.call(mapped, plan, selection, signature);
            let args = self.keep(launch.args, buffers).with(mapped.handle).with(call);
            let config = LaunchConfig::linear(selection.blocks, selection.threads);
            // SAFETY: the algorithm has promised that it is right; the caller answers for the memory.
            unsafe { launch.kernel.launch(stream, config, &args)? };
            return Ok(());
        }
        let selection = self.choose(&query);
        if selection.protocol == Protocol::CopyEngine
            && let Some(places) = engines
        {
            // SAFETY: the caller's promise.
            return unsafe { self.by_copy_engines(mapped, signature, plan, &places, stream, buffers) };
        }
        let stepped = if selection.two_steps { plan.in_two_steps(ranks) } else { None };
        let plan = stepped.as_ref().unwrap_or(plan);
        let call = self.call(mapped, plan, selection, signature);
        let args = self.keeping(buffers).with(mapped.handle);
        let args = if matches!(selection.protocol, Protocol::Direct | Protocol::Bulk) {
            let (direct, owner) = self.registrations.direct(call, self.group.rank);
            args.with_owner(owner).with(direct)
        } else {
            args.with(call)
        };
        let mut config = LaunchConfig::linear(selection.blocks, selection.threads);
        if selection.protocol == Protocol::Bulk {
            config.shared_bytes = BULK_SHARED_BYTES;
        }
        let kernel = mapped.kernels.of(selection, WordOperation::of(plan.op, plan.data_type))?;
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { kernel.launch(stream, config, &args)? };
        Ok(())
    }

    pub(crate) fn call(
        &self,
        mapped: &Mapped,
        plan: &Plan,
        selection: Selection,
        signature: [u64; 2],
    ) -> CollectiveCall {
        let (scale, scaled) = plan.op.map_or((0, 0), |op| op.scale(plan.data_type));
        let Selection { protocol, two_steps, blocks, .. } = selection;
        let ranks = self.group.ranks.len();
        // `ChunkRole` of the headers: one block puts, and another one takes, unless that would overwrite what is sent.
        let by_two_blocks = protocol == Protocol::Simple && ranks > 2 && blocks >= 2;
        let lanes = if by_two_blocks { blocks / 2 } else { blocks };
        let in_place = by_two_blocks && !two_steps && plan.overwrites_what_it_sends(self.group.rank, ranks);
        CollectiveCall {
            segments: plan.segments,
            most_bytes: plan.most_bytes.unwrap_or(0).next_multiple_of(16),
            chunk: mapped.layout.chunk(plan.most_bytes, lanes, two_steps),
            data_type: plan.data_type as u32,
            op: plan.op.map_or(0, ReduceOp::number),
            scale,
            scaled,
            one_way: plan.one_way.into(),
            checked: self.check_calls.into(),
            in_place: in_place.into(),
            signature,
        }
    }

    pub(crate) fn choose(&self, query: &Query) -> Selection {
        if query.ranks == 1 {
            // Nothing travels; the kernel of packets has no limit then.
            return Selection {
                protocol: Protocol::Ll16,
                two_steps: false,
                blocks: self.max_blocks,
                threads: 256,
            };
        }
        self.selector.choose(query).mended(query)
    }

    /// Where the copies of a call go by engines, if they can.
    pub(crate) fn copy_engines(&self, plan: &Plan) -> Option<Places> {
        self.registrations.copy_engines(plan, self.group.rank, self.group.ranks.len())
    }

    /// `engines`: whether the call can go by engines.
    pub(crate) fn query(&self, mapped: &Mapped, plan: &Plan, engines: bool) -> Query {
        let ranks = self.group.ranks.len();
        let most = plan.most_bytes.map(|most| most.next_multiple_of(16));
        let fits = |protocol| most.is_some_and(|most| mapped.layout.fits(protocol, most, false));
        // Between two ranks, two steps gain nothing.
        let part = plan.part(ranks).filter(|_| ranks > 2 && most.is_some_and(|most| most >= TWO_STEPS_MIN));
        let own = plan.segments[self.group.rank];
        let direct = plan.op.is_none() && self.registrations.are_some();
        let possible = Possible {
            ll16: fits(Protocol::Ll16),
            ll128: mapped.ll128 && fits(Protocol::Ll128),
            ll16_in_two_steps: false,
            ll128_in_two_steps: mapped.ll128
                && part.is_some_and(|part| mapped.layout.fits(Protocol::Ll128, part, true)),
            simple_in_two_steps: part.is_some(),
            direct,
            bulk: direct && mapped.devices.have_bulk_copies(),
            copy_engine: engines,
            in_place: engines && own.send == own.recv,
        };
        let shape = match (plan.whole, plan.one_way) {
            (Some(_), _) => Shape::AllReduce,
            (None, true) => Shape::Rooted,
            (None, false) => Shape::Exchange,
        };
        Query {
            shape,
            reduces: plan.op.is_some(),
            bytes: most.unwrap_or(u64::MAX),
            ranks,
            possible,
            max_blocks: mapped.max_blocks,
            max_threads: mapped.max_threads,
            devices: mapped.devices,
        }
    }
}
