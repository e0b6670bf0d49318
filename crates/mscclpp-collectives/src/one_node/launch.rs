//! From a plan to a launch.

use mscclpp::{LaunchConfig, Stream};

use crate::{
    DataType, Protocol, ReduceOp, Request, Result,
    choice::{Asked, LANES_OF_BLOCK, Launch, Possible, Query, Selection, Selector, Shape, threads_with_room},
    handle::{
        CollectiveCall, CollectiveDirectCall, CollectiveManySends, CollectiveRings, CollectiveSends,
        MANY_MESSAGES, MAX_RANKS, MESSAGES, Message, Segment,
    },
    plan::{Batch, Plan, TWO_STEPS_MIN, signature},
    rank::{Call, LANES, List, Places, RankState},
};

use super::{engine::OneNode, scratch::Layout};

/// The shared memory of the kernel of bulk copies: a `BulkStage<>` of the headers for each of two warps.
const BULK_SHARED_BYTES: u32 = 2 * 98_432;
/// The shared memory of the kernels of lanes: a `LaneStage` of the headers for each lane of a block.
const LANES_SHARED_BYTES: u32 = LANES_OF_BLOCK * 49_280;

/// The bytes that the seven warps of a lane that take move at once: `VectorsInFlight` vectors each.
const LANE_ROWS: u64 = 7 * 32 * 4 * 16;

impl OneNode {
    /// Puts messages between pairs of ranks into the stream, in one launch.
    ///
    /// # Safety
    /// Their memory lives until the launch is complete, and the device reaches it.
    pub(crate) unsafe fn move_batch(
        &self,
        rank: &RankState,
        batch: &Batch<'_>,
        call: &Call<'_>,
    ) -> Result<()> {
        let Layout { message_signals: signals, messages: places, message_chunk: chunk, .. } = self.layout;
        let counts = rank.counters.messages();
        let rings = CollectiveRings { counts, signals, places, chunk, lanes: LANES, reserved: 0 };
        let blocks = self.handle.ranks * 2 * LANES;
        let threads = threads_with_room(self.max_threads, blocks, rank.threads());
        let args = call.keeping(&self.owner).with(self.handle);
        let (kernel, args) = if batch.iter().flatten().all(|messages| messages.len() <= MESSAGES) {
            let mut messages = [[[Message::NONE; MESSAGES]; 2]; MAX_RANKS];
            for (to, from) in messages.iter_mut().flatten().zip(batch.iter().flatten()) {
                to[..from.len()].copy_from_slice(from);
            }
            let sends = CollectiveSends { messages, rings };
            (&self.kernels.messages, args.with(sends))
        } else {
            let mut messages = [Message::NONE; MANY_MESSAGES];
            let mut ends = [0; 2 * MAX_RANKS];
            let mut end = 0;
            for (to, from) in ends.iter_mut().zip(batch.iter().flatten()) {
                messages[end..end + from.len()].copy_from_slice(from);
                end += from.len();
                *to = end as u32;
            }
            let sends = CollectiveManySends { messages, ends, rings };
            (&self.kernels.many_messages, args.with(sends))
        };
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { call.launch(kernel, LaunchConfig::linear(blocks, threads), &args)? };
        Ok(())
    }

    /// Puts an exchange into the stream. `request` is the request that the plan is for, by which calls are compared and an
    /// [`Algorithm`](crate::Algorithm) may do it: `None` if the plan is a part of a larger call, or of several requests together.
    ///
    /// # Safety
    /// The plan's memory lives until the launch is complete, and the device reaches it.
    pub(crate) unsafe fn exchange_one(
        &self,
        rank: &RankState,
        request: Option<&Request<'_>>,
        plan: &Plan,
        call: &Call<'_>,
    ) -> Result<()> {
        let ranks = rank.n_ranks();
        if ranks == 1 && !plan.op.is_some_and(ReduceOp::scales) {
            let Segment { send, recv, recv_bytes, .. } = plan.segments[0];
            if send != recv && recv_bytes > 0 {
                // SAFETY: the caller's promise.
                unsafe { call.stream.copy(recv, send, recv_bytes)? };
            }
            return Ok(());
        }
        let registered = rank.registrations.read();
        let places = registered.copy_places(plan, rank.rank());
        let query = self.query_with(plan, &registered, rank.rank(), places.is_some());
        let signature = request.map_or([0; 2], signature);
        let own = request.filter(|_| ranks > 1).and_then(|it| self.own_launch(rank, it, &query));
        if let Some((launch, selection)) = own {
            let collective = self.collective_call(rank, plan, selection, signature);
            let args = launch.args.with_owner(self.owner.clone()).keeping_each(call.buffers.iter().copied());
            let args = args.with(self.handle).with(collective);
            let config = LaunchConfig::linear(selection.blocks, selection.threads);
            // SAFETY: the algorithm has promised that it is right; the caller answers for the memory.
            unsafe { call.launch(&launch.kernel, config, &args)? };
            return Ok(());
        }
        let mut selection = self.choose(call.selector, &query);
        if selection.protocol == Protocol::CopyEngine
            && let Some(places) = places
        {
            // SAFETY: the caller's promise.
            return unsafe { self.by_copy_engines(rank, signature, plan, &places, call) };
        }
        let stepped = if selection.two_steps { plan.in_two_steps() } else { None };
        let plan = stepped.as_ref().unwrap_or(plan);
        let collective = self.collective_call(rank, plan, selection, signature);
        // Bulk copies cannot scale numbers, and are slow from other addresses.
        if selection.protocol == Protocol::SimpleByBulk
            && (collective.scaled != 0 || plan.segments.iter().any(|it| !it.send.0.is_multiple_of(16)))
        {
            selection = selection.without_bulk(self.max_threads);
        }
        let args = call.keeping(&self.owner).with(self.handle);
        let args = match self.places(rank, plan, &mut selection, call.stream)? {
            Some(Places { places, segments }) => {
                let args = segments.into_iter().fold(args, |args, segment| args.with_owner(segment));
                args.with(CollectiveDirectCall {
                    call: collective,
                    places,
                    reach: rank.registry.peers.reach(),
                })
            }
            None => args.with(collective),
        };
        let mut config = LaunchConfig::linear(selection.blocks, selection.threads);
        match selection.protocol {
            Protocol::Bulk => config.shared_bytes = BULK_SHARED_BYTES,
            Protocol::SimpleByBulk => config.shared_bytes = LANES_SHARED_BYTES,
            _ => {}
        }
        let kernel = self.kernels.of(selection, plan.op, plan.data_type)?;
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(())
    }

    /// Finds the places of a call that may go directly, and returns None for other calls. If a call of Simple may go directly,
    /// its protocol becomes Direct. The other ranks need not know, since both kernels work together (D8).
    fn places(
        &self,
        rank: &RankState,
        plan: &Plan,
        selection: &mut Selection,
        stream: &Stream,
    ) -> Result<Option<Places>> {
        let registry = &rank.registry;
        let results = selection.two_steps;
        let (publishes, ready) = match selection.protocol {
            // The kernel of Bulk takes nothing out of the ring where it was given a place. So it gets only places that it will
            // name, since their segments are ready.
            Protocol::Bulk => (false, true),
            Protocol::Simple | Protocol::SimpleByBulk | Protocol::Direct
                if (plan.op.is_none() || results) && !self.is_among_nodes() =>
            {
                // With MSCCLPP_GRAPH_REGISTER=0, captured calls that move still go directly if memory is published later.
                let captured = stream.is_capturing()? && (registry.publishes_captured() || !results);
                if selection.protocol != Protocol::Direct && !captured && !registry.is_used() {
                    return Ok(None);
                }
                *selection =
                    Selection { protocol: Protocol::Direct, ..selection.without_bulk(self.max_threads) };
                (captured && registry.publishes_captured(), false)
            }
            _ => return Ok(None),
        };
        Ok(Some(registry.places(&plan.segments, rank.rank(), results, publishes, ready)))
    }

    pub(super) fn collective_call(
        &self,
        rank: &RankState,
        plan: &Plan,
        selection: Selection,
        signature: [u64; 2],
    ) -> CollectiveCall {
        let (scale, scaled) = match (plan.op, plan.data_type) {
            (Some(ReduceOp::Avg), DataType::F32) => (u64::from((1.0 / rank.n_ranks() as f32).to_bits()), 0),
            (op, data_type) => op.map_or((0, 0), |op| op.scale(data_type)),
        };
        let Selection { protocol, two_steps, blocks, .. } = selection;
        // `ChunkRole` of the headers: one block puts, and another one takes.
        let by_chunks = matches!(protocol, Protocol::Simple | Protocol::Direct);
        let by_two_blocks = by_chunks && rank.n_ranks() > 2 && blocks >= 2;
        let lanes = match protocol {
            Protocol::SimpleByBulk => blocks * LANES_OF_BLOCK,
            _ if by_two_blocks => blocks / 2,
            _ => blocks,
        };
        let mut chunk = self.layout.chunk(plan.most_bytes, lanes, two_steps, by_two_blocks);
        if protocol == Protocol::SimpleByBulk && chunk > LANE_ROWS {
            chunk = chunk / LANE_ROWS * LANE_ROWS;
        }
        let in_place = by_two_blocks && !two_steps && plan.overwrites_what_it_sends(rank.rank());
        let mut segments = [Segment::NONE; MAX_RANKS];
        segments[..plan.segments.len()].copy_from_slice(&plan.segments);
        CollectiveCall {
            segments,
            most_bytes: plan.most_bytes.unwrap_or(0).next_multiple_of(16),
            chunk,
            data_type: plan.data_type as u32,
            op: plan.op.map_or(0, ReduceOp::number),
            scale,
            scaled,
            one_way: plan.one_way.into(),
            checked: rank.options.checks().into(),
            in_place: in_place.into(),
            signature,
        }
    }

    pub(super) fn choose(&self, selector: &dyn Selector, query: &Query) -> Selection {
        if query.ranks == 1 {
            // Nothing travels; the kernel of LL16 packets has no limit then.
            return Selection {
                protocol: Protocol::Ll16,
                two_steps: false,
                blocks: self.layout.max_blocks,
                threads: 256,
            };
        }
        selector.choose(query).mended(query)
    }

    /// The launch by one of the program's algorithms, if one does the call, and its blocks and threads: there may not be room for
    /// as many as it gives.
    pub(super) fn own_launch(
        &self,
        rank: &RankState,
        request: &Request<'_>,
        query: &Query,
    ) -> Option<(Launch, Selection)> {
        let asked = Asked {
            kind: request.kind,
            data_type: request.data_type,
            query: *query,
            scratch_bytes: self.layout.parts.chunk_bytes,
        };
        let launch = rank.options.algorithms.iter().find_map(|algorithm| algorithm.plan(&asked))?;
        let Launch { blocks, threads, .. } = launch;
        let selection =
            Selection { protocol: Protocol::Simple, two_steps: false, blocks, threads }.mended(query);
        Some((launch, selection))
    }

    pub(super) fn query(&self, rank: &RankState, plan: &Plan) -> Query {
        let registered = rank.registrations.read();
        let has_places = registered.copy_places(plan, rank.rank()).is_some();
        self.query_with(plan, &registered, rank.rank(), has_places)
    }

    /// The query for a call of `rank`. `copy_engine`: copy engines can do it.
    pub(super) fn query_with(&self, plan: &Plan, registered: &List, rank: usize, copy_engine: bool) -> Query {
        let ranks = plan.segments.len();
        let most = plan.most_bytes.map(|most| most.next_multiple_of(16));
        let fits = |protocol| most.is_some_and(|most| self.layout.fits(protocol, most, false));
        // Between two ranks, two steps gain nothing.
        let part = plan.part().filter(|_| ranks > 2 && most.is_some_and(|most| most >= TWO_STEPS_MIN));
        let own = plan.segments[rank];
        let direct = plan.op.is_none() && registered.are_some();
        let possible = Possible {
            ll16: fits(Protocol::Ll16),
            ll128: self.ll128 && fits(Protocol::Ll128),
            ll16_in_two_steps: false,
            ll128_in_two_steps: self.ll128
                && part.is_some_and(|part| self.layout.fits(Protocol::Ll128, part, true)),
            simple_in_two_steps: part.is_some(),
            direct,
            bulk: direct && self.devices.have_bulk_copies(),
            copy_engine,
            in_place: copy_engine && own.send == own.recv,
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
            max_blocks: self.max_blocks,
            max_threads: self.max_threads,
            overlap: self.overlap,
            devices: self.devices,
        }
    }
}
