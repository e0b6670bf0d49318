//! From a plan to a launch.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use mscclpp::{
    Communicator, DeviceBuffer, Gpu, KernelArgs, LaunchConfig, MemoryChannel, Stream,
    gpu::{Owner, PinnedBuffer},
};
use parking_lot::Mutex;

use crate::{
    DataType, Kind, ReduceOp, Request, Result, Selector, Way,
    handle::{CollectiveCall, CollectiveHandle, Segment},
    kernels::{Kernels, Words},
    order::Order,
    plan::{Plan, Planned, TWO_STEPS_MIN, plan},
    scratch::{LANES, Layout},
    select::{Choice, Devices, Possible, Question, Shape},
    setup::Group,
};

/// What a rank's collectives are made of.
pub(crate) struct Inner {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) group: Group,
    pub(crate) layout: Layout,
    pub(crate) kernels: Arc<Kernels>,
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
    /// See [`Question`].
    pub(crate) max_threads: u32,
    pub(crate) selector: Arc<dyn Selector>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tag: u32,
    /// Held while a call is put into its stream, so that calls have one order.
    pub(crate) order: Mutex<Order>,
}

/// Words of the device's own: an epoch for each block, the counts of messages, and what a barrier moves.
pub(crate) struct Counters {
    pub(crate) buffer: DeviceBuffer,
    pub(crate) messages: u64,
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

impl Inner {
    pub(crate) fn planned(&self, request: &Request<'_>) -> Result<Planned> {
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

    pub(crate) fn args(&self, buffers: &[&DeviceBuffer]) -> KernelArgs {
        KernelArgs::new()
            .with_owner(self.owner.clone())
            .keeping_each(buffers.iter().copied())
            .with(self.handle)
    }

    /// # Safety
    /// The plan's memory lives until the launch is complete, and the device reaches it.
    pub(crate) unsafe fn exchange(
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

    pub(crate) fn choose(&self, plan: &Plan, ranks: usize) -> Choice {
        if ranks == 1 {
            // Nothing travels; the kernel of packets has no limit then.
            return Choice { way: Way::Packets, two_steps: false, blocks: self.layout.slots, threads: 256 };
        }
        let question = self.question(plan, ranks);
        self.selector.choose(&question).mended(&question)
    }

    /// What a selector is asked of a plan between several ranks.
    pub(crate) fn question(&self, plan: &Plan, ranks: usize) -> Question {
        let most = plan.most_bytes.map(|most| most.next_multiple_of(16));
        let fits = |way| most.is_some_and(|most| self.layout.fits(way, most, false));
        // Between two ranks, two steps gain nothing.
        let part = plan.part(ranks).filter(|_| ranks > 2 && most.is_some_and(|most| most >= TWO_STEPS_MIN));
        let possible = Possible {
            packets: fits(Way::Packets),
            lines: self.lines && fits(Way::Lines),
            packets_in_two_steps: false,
            lines_in_two_steps: self.lines
                && part.is_some_and(|part| self.layout.fits(Way::Lines, part, true)),
            pieces_in_two_steps: part.is_some(),
        };
        let shape = match (plan.whole, plan.one_way) {
            (Some(_), _) => Shape::AllReduce,
            (None, true) => Shape::Rooted,
            (None, false) => Shape::Exchange,
        };
        Question {
            shape,
            reduces: plan.op.is_some(),
            bytes: most.unwrap_or(u64::MAX),
            ranks,
            possible,
            max_blocks: self.layout.slots,
            max_threads: self.max_threads,
            devices: self.devices,
        }
    }
}
