//! Several calls in one launch.

use mscclpp::{DevicePtr, LaunchConfig};

use crate::{
    DataType, Kind, Protocol, ReduceOp, Result,
    handle::{
        CollectiveGroup, CollectiveMoves, MAX_RANKS, MOVE_CALLS, MOVES, Move, PARTS, Part, Segment, TO_ALL,
    },
    plan::{Exchange, Plan, Whole, joined},
    rank::{Call, List, RankState},
};

use super::{engine::OneNode, kernels::WordOperation};

/// The most bytes that a rank sends to all others for calls that reduce and go together. Up to there LL16 takes no longer than
/// several calls by LL128.
const MOST_REDUCED: u64 = 256 << 10;
/// The most bytes that a rank sends to another for calls that move and go together, if all ranks know their sizes: kernels count
/// them with 32 bits.
const MOST_MOVED: u64 = 1 << 30;

impl OneNode {
    /// Puts exchanges into the stream in their [`order`], and those that go together in one launch. Order and launches depend
    /// only on what every rank knows, since all ranks must do alike.
    ///
    /// # Safety
    /// The memory of the plans lives until the launches are complete, and the device reaches it. No result overlaps other
    /// memory of the exchanges, but as [`Request::recv`] says.
    pub(super) unsafe fn exchange_in_few_launches(
        &self,
        rank: &RankState,
        exchanges: &[Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<()> {
        let ranks = rank.n_ranks();
        if exchanges.len() < 2 || ranks == 1 || rank.options.checks() || !rank.options.algorithms.is_empty() {
            return exchanges.iter().try_for_each(|(request, plan)| {
                // SAFETY: the caller's promise.
                unsafe { self.exchange_one(rank, Some(request), plan, call) }
            });
        }
        let joined = joined(exchanges);
        let mut asked: Vec<&Exchange<'_, '_>> = joined.iter().map(|exchange| &**exchange).collect();
        // Calls whose sizes only pairs of ranks know may be large, and go directly where that is possible.
        let directly = rank.registrations.read().are_some();
        let moves = |exchange: &Exchange<'_, '_>| moves(exchange) && !(directly && is_of_pairs(exchange));
        asked.sort_by_key(|exchange| order(exchange, moves(exchange)));
        let mut rest = &*asked;
        while let Some(first) = rest.first() {
            let together = match moves(first) {
                true => moved_together(rest, ranks, moves),
                false => self.reduced_together(rest),
            };
            let (next, others) = rest.split_at(together);
            rest = others;
            let done = match (next.len(), moves(first)) {
                (1, _) => false,
                // SAFETY: the caller's promise.
                (_, true) => unsafe { self.move_together(rank, next, call)? },
                // SAFETY: the caller's promise.
                (_, false) => unsafe { self.reduce_together(rank, next, call)? },
            };
            if done {
                continue;
            }
            for (_, plan) in next {
                // SAFETY: the caller's promise.
                unsafe { self.exchange_one(rank, None, plan, call)? };
            }
        }
        Ok(())
    }

    /// Puts exchanges that [move together](moved_together) into the stream, unless it is better that they go directly. Returns
    /// whether it did.
    ///
    /// # Safety
    /// The same as of [`Self::exchange_in_few_launches`].
    unsafe fn move_together(
        &self,
        rank: &RankState,
        asked: &[&Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<bool> {
        let ranks = rank.n_ranks();
        let units = |plan: &Plan, unit: u64| plan.most_bytes.unwrap_or(0).div_ceil(unit);
        let pairs = asked.iter().filter(|exchange| is_of_pairs(exchange)).count();
        // The bytes of a message of whole units, without the parts whose sizes only pairs of ranks know.
        let bytes_by = |unit: u64| asked.iter().map(|(_, plan)| units(plan, unit)).sum::<u64>() * unit;
        let most_bytes = |unit| (pairs == 0).then(|| bytes_by(unit));
        let mut plan = Plan {
            segments: vec![Segment::NONE; ranks],
            op: None,
            data_type: DataType::U8,
            most_bytes: most_bytes(16),
            // If in one of them every rank takes something from every other, it does in all together.
            one_way: asked.iter().all(|(_, plan)| plan.one_way),
            whole: None,
            same_offsets: false,
        };
        let mut query = self.query_with(&plan, &rank.registrations.read(), rank.rank(), false);
        let fits = |protocol, unit| {
            most_bytes(unit).is_some_and(|most| self.layout.fits(protocol, most.next_multiple_of(16), false))
        };
        query.possible.ll16 = fits(Protocol::Ll16, 8);
        query.possible.ll128 = self.ll128 && fits(Protocol::Ll128, 120);
        let selection = self.choose(call.selector, &query);
        let Some((kernel, unit)) = self.kernels.of_moves(selection.protocol) else { return Ok(false) };

        plan.most_bytes = most_bytes(unit);
        let mut collective = self.collective_call(rank, &plan, selection, [0; 2]);
        let mut moves = [Move::NONE; MOVES];
        let mut ends = [0; MOVE_CALLS];
        let mut begin = 0;
        let (of_all, of_pairs) = asked.split_at(asked.len() - pairs);
        for (c, (_, plan)) in of_all.iter().enumerate() {
            for (r, segment) in plan.segments.iter().enumerate() {
                moves[c * ranks + r] = move_of(segment);
                extend(&mut collective.segments[r], [begin * unit; 2], segment, r == rank.rank());
            }
            begin += units(plan, unit);
            ends[c] = begin as u32;
        }
        // The ends of the parts so far in the messages to and from each rank.
        let mut parts = [[begin * unit; 2]; MAX_RANKS];
        for (moves, (_, plan)) in moves[of_all.len() * ranks..].chunks_mut(2 * ranks).zip(of_pairs) {
            for (r, segment) in plan.segments.iter().enumerate() {
                let [send, recv] = parts[r].map(|end| end.next_multiple_of(16));
                extend(&mut collective.segments[r], [send, recv], segment, r == rank.rank());
                moves[r] = move_of(segment);
                moves[ranks + r] = Move {
                    send: DevicePtr(send),
                    recv: DevicePtr(recv),
                    send_bytes: (segment.send_bytes >> 32) as u32,
                    recv_bytes: (segment.recv_bytes >> 32) as u32,
                };
                parts[r] = [send + segment.send_bytes, recv + segment.recv_bytes];
            }
        }
        collective.in_place = asked.iter().any(|(_, plan)| plan.overwrites_what_it_sends(rank.rank())).into();
        let [count, pairs] = [of_all.len() as u32, of_pairs.len() as u32];
        let all = CollectiveMoves { call: collective, moves, ends, count, pairs };
        let args = call.keeping(&self.owner).with(self.handle).with(all);
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(true)
    }

    /// Puts exchanges that [reduce together](Self::reduced_together) into the stream, if they go by LL16. Returns whether it did.
    ///
    /// # Safety
    /// The same as of [`Self::exchange_in_few_launches`].
    unsafe fn reduce_together(
        &self,
        rank: &RankState,
        asked: &[&Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<bool> {
        let peers = rank.n_ranks() as u64 - 1;
        let mut plan = asked[0].1.clone();
        // A table goes by what a rank sends to each other on average.
        let bytes = asked.iter().map(|(_, plan)| sent_bytes(plan)).sum::<u64>().div_ceil(peers);
        plan.segments.fill(Segment::NONE);
        plan.most_bytes = Some(bytes);
        plan.whole = asked.iter().find_map(|(_, plan)| plan.whole).map(|whole| Whole { bytes, ..whole });
        plan.one_way = asked.iter().all(|(_, plan)| plan.one_way);
        let mut query = self.query_with(&plan, &List::default(), rank.rank(), false);
        query.possible.ll16 = true;
        query.possible.ll128 = false;
        let selection = self.choose(call.selector, &query);
        if selection.protocol != Protocol::Ll16 || selection.two_steps {
            return Ok(false);
        }
        let mut parts = [Part::NONE; PARTS];
        let mut before = 0;
        for (to, part) in parts.iter_mut().zip(asked.iter().flat_map(|(_, plan)| parts_of(plan, rank.rank())))
        {
            *to = Part { before, ..part };
            before += part.bytes.div_ceil(8);
        }
        plan.most_bytes = Some(u64::from(before) * 8);
        let collective = self.collective_call(rank, &plan, selection, [0; 2]);
        let count = asked.iter().map(|(_, plan)| parts_of(plan, rank.rank()).count() as u64).sum();
        let group = CollectiveGroup { call: collective, parts, count };
        let args = call.keeping(&self.owner).with(self.handle).with(group);
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        let kernel = self.kernels.of_group(WordOperation::of(plan.op, plan.data_type));
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(true)
    }

    /// How many of these exchanges, from the first on, go in one launch: those of which every rank can see that they are small,
    /// and reduce by one type and operation.
    fn reduced_together(&self, asked: &[&Exchange<'_, '_>]) -> usize {
        let alike = |plan: &Plan| (plan.op, plan.data_type);
        let Some((_, first)) = asked.first() else { return 1 };
        if first.op.is_none_or(ReduceOp::scales) {
            return 1;
        }
        let (mut sent, mut words, mut parts) = (0, 0, 0);
        let fits = |(_, plan): &&&Exchange<'_, '_>| {
            sent += sent_bytes(plan);
            words += words_of(plan);
            parts += parts_of(plan, 0).count();
            let is_room = parts <= PARTS && self.layout.fits(Protocol::Ll16, words * 8, false);
            alike(plan) == alike(first) && sent <= MOST_REDUCED && is_room
        };
        asked.iter().take_while(fits).count().max(1)
    }
}

/// The parts of a message that is reduced, as `rank` has them: their sizes are alike on all ranks.
fn parts_of(plan: &Plan, rank: usize) -> impl Iterator<Item = Part> {
    let whole = plan.whole.map(|Whole { send, recv, bytes }| (TO_ALL, send, recv, bytes));
    let own = plan.segments[rank].recv;
    let each = plan.segments.iter().enumerate().filter(move |_| whole.is_none());
    let each = each.map(move |(to, segment)| (to as u32, segment.send, own, segment.send_bytes));
    // A part has 32 bits for its size: the calls of a launch send no more than `MOST_REDUCED`.
    let part = |(to, send, recv, bytes)| Part { send, recv, bytes: bytes as u32, before: 0, to, reserved: 0 };
    whole.into_iter().chain(each).map(part).filter(|part| part.bytes > 0)
}

/// The move of a segment, with the lower halves of its sizes.
fn move_of(&Segment { send, recv, send_bytes, recv_bytes }: &Segment) -> Move {
    Move { send, recv, send_bytes: send_bytes as u32, recv_bytes: recv_bytes as u32 }
}

/// Extends the messages to and from a rank to the end of a segment, whose parts begin at `send` and `recv`. What is in place on
/// the `own` rank is not moved.
fn extend(ends: &mut Segment, [send, recv]: [u64; 2], segment: &Segment, own: bool) {
    if own && segment.send == segment.recv {
        return;
    }
    if segment.send_bytes > 0 {
        ends.send_bytes = send + segment.send_bytes;
    }
    if segment.recv_bytes > 0 {
        ends.recv_bytes = recv + segment.recv_bytes;
    }
}

/// Whether data of the program is moved.
fn moves((request, plan): &Exchange<'_, '_>) -> bool {
    request.kind != Kind::Barrier && plan.op.is_none()
}

/// Whether a rank knows its own sizes alone.
fn is_of_pairs((_, plan): &Exchange<'_, '_>) -> bool {
    plan.most_bytes.is_none()
}

/// The place of an exchange among those of a group, alike on all ranks: first those that go with others that move, of which those
/// whose sizes only pairs of ranks know are last; then those that reduce, by operation and type, small ones before others.
fn order(exchange: &Exchange<'_, '_>, moves: bool) -> (u32, u32, u32, bool) {
    let (_, plan) = exchange;
    match plan.op {
        _ if moves => (0, 0, 0, is_of_pairs(exchange)),
        // Factors may be others on each rank.
        Some(op) if !op.scales() => (1, op.number(), plan.data_type as u32, sent_bytes(plan) > MOST_REDUCED),
        _ => (2, 0, 0, false),
    }
}

/// How many of these exchanges go in one launch, from the first on: as long as they [`move`](moves), and there is room.
fn moved_together(
    asked: &[&Exchange<'_, '_>],
    ranks: usize,
    moves: impl Fn(&Exchange<'_, '_>) -> bool,
) -> usize {
    let (mut bytes, mut places) = (0, 0);
    let fits = |exchange: &&&Exchange<'_, '_>| {
        bytes += exchange.1.most_bytes.unwrap_or(0);
        places += if is_of_pairs(exchange) { 2 * ranks } else { ranks };
        moves(exchange) && bytes <= MOST_MOVED && places <= MOVES
    };
    asked.iter().take_while(fits).count().max(1)
}

/// The words of 8 bytes of the messages of a call that reduces, of which the last of each may be less than whole.
fn words_of(plan: &Plan) -> u64 {
    let words = |bytes: u64| bytes.div_ceil(8);
    match plan.whole {
        Some(whole) => words(whole.bytes),
        None => plan.segments.iter().map(|segment| words(segment.send_bytes)).sum(),
    }
}

/// The bytes that a rank sends for a call that reduces, with its own part, since all ranks must know them alike.
fn sent_bytes(plan: &Plan) -> u64 {
    let times = if plan.whole.is_some() { plan.segments.len() as u64 - 1 } else { 1 };
    words_of(plan).saturating_mul(8 * times)
}
