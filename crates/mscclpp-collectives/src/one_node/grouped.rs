//! Several calls in one launch.

use mscclpp::{DevicePtr, Kernel, LaunchConfig};

use crate::{
    DataType, Kind, Protocol, ReduceOp, Result,
    choice::{Possible, Selection},
    handle::{
        CollectiveGroup, CollectiveMoves, MAX_RANKS, MOVE_CALLS, MOVES, Move, PARTS, Part, Segment, TO_ALL,
    },
    plan::{Exchange, Plan, Whole, joined},
    rank::{Call, List, RankState},
};

use super::engine::OneNode;

/// The most bytes that a rank sends, its own part included, for calls that reduce and go together by LL16. Up to there LL16 takes
/// no longer than several calls by LL128.
const MOST_BY_PACKETS: u64 = 256 << 10;
/// The same between two ranks if LL128 is possible: up to there LL16 takes no longer than one launch by LL128.
const MOST_BY_PACKETS_OF_TWO: u64 = 64 << 10;
/// The most bytes that a rank sends, its own part included, for a small call that reduces. Where LL16 has the first of these
/// limits, at least eight small calls go together by it.
const MOST_OF_SMALL: u64 = MOST_BY_PACKETS / 8;
/// The most bytes of a message of a call that goes together with others by LL128 or Simple. A larger one that moves may go
/// straight into published memory, and a larger one that reduces may go by bulk copies.
const MOST_TOGETHER: u64 = 32 << 20;
/// The most bytes of a message of a call that reduces and goes together with others by LL128 or Simple between more than two
/// ranks, and the fewest such calls. Larger or fewer ones take less time one by one.
const MOST_REDUCED_OF_MORE: u64 = 1 << 20;
const FEWEST_REDUCED_OF_MORE: usize = 3;
/// The most bytes that a rank sends to another for calls that go together, if all ranks know their sizes: kernels count them with
/// 32 bits.
const MOST_TO_ANOTHER: u64 = 1 << 30;

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
        let goes_alone =
            |(_, plan): &Exchange<'_, '_>| plan.most_bytes.map_or(directly, |most| most > MOST_TOGETHER);
        let moves = |exchange: &Exchange<'_, '_>| moves(exchange) && !goes_alone(exchange);
        asked.sort_by_key(|exchange| order(exchange, moves(exchange)));
        let mut rest = &*asked;
        while let Some(first) = rest.first() {
            let (together, by_packets) = match moves(first) {
                true => (in_one_message(rest, ranks, moves), false),
                false => self.reduced_together(rest, ranks),
            };
            let (next, others) = rest.split_at(together);
            rest = others;
            let done = match (next.len(), moves(first), by_packets) {
                (1, ..) => false,
                // SAFETY: the caller's promise.
                (_, true, _) => unsafe { self.move_together(rank, next, call)? },
                // SAFETY: the caller's promise.
                (_, false, true) => unsafe { self.reduce_by_packets(rank, next, call)? },
                (_, false, false) => {
                    // SAFETY: the caller's promise.
                    unsafe { self.reduce_in_one_message(rank, next, call)? };
                    true
                }
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

    /// Puts exchanges that [move together](in_one_message) into the stream, unless it is better that they go directly. Returns
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
        let pairs = asked.iter().filter(|exchange| is_of_pairs(exchange)).count();
        let mut plan = Plan {
            segments: vec![Segment::NONE; ranks],
            op: None,
            data_type: DataType::U8,
            most_bytes: bytes_by(asked, 16),
            // If in one of them every rank takes something from every other, it does in all together.
            one_way: asked.iter().all(|(_, plan)| plan.one_way),
            whole: None,
            same_offsets: false,
        };
        let mut query = self.query_with(&plan, &rank.registrations.read(), rank.rank(), false);
        query.possible.ll16 = self.fits(asked, Protocol::Ll16, 8);
        query.possible.ll128 = self.ll128 && self.fits(asked, Protocol::Ll128, 120);
        let selection = self.choose(call.selector, &query).without_bulk(self.max_threads);
        let Some((kernel, unit)) = self.kernels.of_moves(selection.protocol) else { return Ok(false) };

        plan.most_bytes = bytes_by(asked, unit);
        let plans: Vec<&Plan> = asked.iter().map(|(_, plan)| plan).collect();
        let parts = plans.split_at(plans.len() - pairs);
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { self.launch_parts(rank, &plan, parts, unit, (kernel, selection), call)? };
        Ok(true)
    }

    /// Launches a kernel that takes a [`CollectiveMoves`], with the parts of plans of which all ranks know the sizes, and of
    /// those whose sizes only pairs of ranks know. `plan` is that of all of them together.
    ///
    /// # Safety
    /// The kernel takes such parts, counted in `unit` bytes. The memory is as [`Self::exchange_in_few_launches`] says.
    unsafe fn launch_parts(
        &self,
        rank: &RankState,
        plan: &Plan,
        (of_all, of_pairs): (&[&Plan], &[&Plan]),
        unit: u64,
        (kernel, selection): (&Kernel, Selection),
        call: &Call<'_>,
    ) -> Result<()> {
        let ranks = rank.n_ranks();
        let mut collective = self.collective_call(rank, plan, selection, [0; 2]);
        let mut moves = [Move::NONE; MOVES];
        let mut ends = [0; MOVE_CALLS];
        let mut begin = 0;
        // Whether a segment is the rank's own part, which lies in place already and is not moved.
        let stays = |r: usize, segment: &Segment| {
            plan.op.is_none() && r == rank.rank() && segment.send == segment.recv
        };
        for (c, plan) in of_all.iter().enumerate() {
            for (r, segment) in plan.segments.iter().enumerate() {
                moves[c * ranks + r] = move_of(segment);
                if !stays(r, segment) {
                    extend(&mut collective.segments[r], [begin * unit; 2], segment);
                }
            }
            begin += units(plan, unit);
            ends[c] = begin as u32;
        }
        // The ends of the parts so far in the messages to and from each rank.
        let mut parts = [[begin * unit; 2]; MAX_RANKS];
        for (moves, plan) in moves[of_all.len() * ranks..].chunks_mut(2 * ranks).zip(of_pairs) {
            for (r, segment) in plan.segments.iter().enumerate() {
                let [send, recv] = parts[r].map(|end| end.next_multiple_of(16));
                if !stays(r, segment) {
                    extend(&mut collective.segments[r], [send, recv], segment);
                }
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
        let mut plans = of_all.iter().chain(of_pairs);
        collective.in_place = plans.any(|plan| plan.overwrites_what_it_sends(rank.rank())).into();
        let uneven = of_all.iter().chain(of_pairs).any(|plan| plan.one_way).into();
        let [count, pairs] = [of_all.len() as u32, of_pairs.len() as u32];
        let all = CollectiveMoves { call: collective, moves, ends, count, pairs, uneven, reserved: 0 };
        let args = call.keeping(&self.owner).with(self.handle).with(all);
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        // SAFETY: the caller's promise.
        unsafe { call.launch(kernel, config, &args) }
    }

    /// Puts exchanges that [reduce together](Self::reduced_together) into the stream, if they go by LL16. Returns whether it did.
    ///
    /// # Safety
    /// The same as of [`Self::exchange_in_few_launches`].
    unsafe fn reduce_by_packets(
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
        let kernel = self.kernels.of_several((Protocol::Ll16, false), plan.op, plan.data_type)?;
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { call.launch(kernel, config, &args)? };
        Ok(true)
    }

    /// Puts exchanges that [reduce together](Self::reduced_together) into the stream, by LL128 or Simple.
    ///
    /// # Safety
    /// The same as of [`Self::exchange_in_few_launches`].
    unsafe fn reduce_in_one_message(
        &self,
        rank: &RankState,
        asked: &[&Exchange<'_, '_>],
        call: &Call<'_>,
    ) -> Result<()> {
        let mut plan = asked[0].1.clone();
        let bytes = bytes_by(asked, 16).unwrap_or(0);
        plan.segments.fill(Segment::NONE);
        plan.most_bytes = Some(bytes);
        plan.whole = plan.whole.map(|whole| Whole { bytes, ..whole });
        plan.one_way = asked.iter().all(|(_, plan)| plan.one_way);
        let mut query = self.query_with(&plan, &List::default(), rank.rank(), false);
        let ll128 = self.ll128 && self.fits(asked, Protocol::Ll128, 120);
        query.possible = Possible { ll16: false, ll128, ll128_in_two_steps: false, ..query.possible };
        let selection = self.choose(call.selector, &query).without_bulk(self.max_threads);
        let unit = if selection.protocol == Protocol::Ll128 { 120 } else { 16 };
        let stepped = |plan: &Plan| if selection.two_steps { plan.in_two_steps() } else { None };
        let stepped: Vec<_> = asked.iter().map(|(_, plan)| stepped(plan)).collect();
        let plans = stepped.iter().zip(asked).map(|(stepped, (_, plan))| stepped.as_ref().unwrap_or(plan));
        let plans: Vec<&Plan> = plans.collect();
        plan.most_bytes = Some(plans.iter().map(|plan| units(plan, unit)).sum::<u64>() * unit);
        let form = (selection.protocol, selection.two_steps);
        let kernel = self.kernels.of_several(form, plan.op, plan.data_type)?;
        // SAFETY: these are its parameters; the caller answers for the memory.
        unsafe { self.launch_parts(rank, &plan, (&plans, &[]), unit, (kernel, selection), call) }
    }

    /// Whether a message with a part for each of these exchanges fits.
    fn fits(&self, asked: &[&Exchange<'_, '_>], protocol: Protocol, unit: u64) -> bool {
        let fits = |most: u64| self.layout.fits(protocol, most.next_multiple_of(16), false);
        bytes_by(asked, unit).is_some_and(fits)
    }

    /// How many of these exchanges, from the first on, go in one launch, and whether they go by LL16, else by LL128 or Simple.
    /// They reduce by one type and operation.
    fn reduced_together(&self, asked: &[&Exchange<'_, '_>], ranks: usize) -> (usize, bool) {
        let Some((_, first)) = asked.first() else { return (1, false) };
        if first.op.is_none_or(ReduceOp::scales) {
            return (1, false);
        }
        let alike = |plan: &Plan| (plan.op, plan.data_type) == (first.op, first.data_type);
        let by_lines = ranks == 2 && self.ll128;
        let most_by_packets = if by_lines { MOST_BY_PACKETS_OF_TWO } else { MOST_BY_PACKETS };
        let (mut sent, mut words, mut parts) = (0, 0, 0);
        let fits = |(_, plan): &&&Exchange<'_, '_>| {
            sent += sent_bytes(plan);
            words += words_of(plan);
            parts += parts_of(plan, 0).count();
            let is_room = parts <= PARTS && self.layout.fits(Protocol::Ll16, words * 8, false);
            alike(plan) && sent <= most_by_packets && is_room
        };
        let by_packets = asked.iter().take_while(fits).count().max(1);
        if size(first) == Size::Small && !by_lines {
            return (by_packets, true);
        }
        // `all_reduce`s in two steps have a kernel of their own.
        let goes = |(_, plan): &Exchange<'_, '_>| {
            let same_kernel = ranks == 2 || plan.whole.is_some() == first.whole.is_some();
            alike(plan) && same_kernel && size(plan) != Size::Large
        };
        let in_message = in_one_message(asked, ranks, goes);
        let fewest = if ranks == 2 { 2 } else { FEWEST_REDUCED_OF_MORE };
        if in_message >= fewest && in_message > by_packets { (in_message, false) } else { (by_packets, true) }
    }
}

/// The parts of a message that is reduced, as `rank` has them: their sizes are alike on all ranks.
fn parts_of(plan: &Plan, rank: usize) -> impl Iterator<Item = Part> {
    let whole = plan.whole.map(|Whole { send, recv, bytes }| (TO_ALL, send, recv, bytes));
    let own = plan.segments[rank].recv;
    let each = plan.segments.iter().enumerate().filter(move |_| whole.is_none());
    let each = each.map(move |(to, segment)| (to as u32, segment.send, own, segment.send_bytes));
    // A part has 32 bits for its size: the calls of a launch send no more than `MOST_BY_PACKETS`.
    let part = |(to, send, recv, bytes)| Part { send, recv, bytes: bytes as u32, before: 0, to, reserved: 0 };
    whole.into_iter().chain(each).map(part).filter(|part| part.bytes > 0)
}

/// The move of a segment, with the lower halves of its sizes.
fn move_of(&Segment { send, recv, send_bytes, recv_bytes }: &Segment) -> Move {
    Move { send, recv, send_bytes: send_bytes as u32, recv_bytes: recv_bytes as u32 }
}

/// Extends the messages to and from a rank to the end of a segment, whose parts begin at `send` and `recv`.
fn extend(ends: &mut Segment, [send, recv]: [u64; 2], segment: &Segment) {
    if segment.send_bytes > 0 {
        ends.send_bytes = send + segment.send_bytes;
    }
    if segment.recv_bytes > 0 {
        ends.recv_bytes = recv + segment.recv_bytes;
    }
}

/// The bytes of a message with a part of whole units for each exchange; none if only pairs of ranks know the size of one.
fn bytes_by(asked: &[&Exchange<'_, '_>], unit: u64) -> Option<u64> {
    asked.iter().map(|(_, plan)| plan.most_bytes.map(|most| most.next_multiple_of(unit))).sum()
}

/// The units of the part of a call in each message; none if only pairs of ranks know its sizes.
fn units(plan: &Plan, unit: u64) -> u64 {
    plan.most_bytes.unwrap_or(0).div_ceil(unit)
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
/// whose sizes only pairs of ranks know are last; then those that reduce, by operation, type and size, of which `all_reduce`s are
/// last.
fn order(exchange: &Exchange<'_, '_>, moves: bool) -> (u32, u32, u32, u32, bool) {
    let (_, plan) = exchange;
    match plan.op {
        _ if moves => (0, 0, 0, is_of_pairs(exchange).into(), false),
        // Factors may be others on each rank.
        Some(op) if !op.scales() => {
            (1, op.number(), plan.data_type as u32, size(plan) as u32, plan.whole.is_some())
        }
        _ => (2, 0, 0, 0, false),
    }
}

/// How many of these exchanges can be parts of one message between each pair of ranks, from the first on: as long as one `goes`
/// with the others, and there is room.
fn in_one_message(
    asked: &[&Exchange<'_, '_>],
    ranks: usize,
    goes: impl Fn(&Exchange<'_, '_>) -> bool,
) -> usize {
    let (mut bytes, mut places) = (0, 0);
    let fits = |exchange: &&&Exchange<'_, '_>| {
        bytes += exchange.1.most_bytes.unwrap_or(0);
        places += if is_of_pairs(exchange) { 2 * ranks } else { ranks };
        goes(exchange) && bytes <= MOST_TO_ANOTHER && places <= MOVES
    };
    asked.iter().take_while(fits).count().max(1)
}

/// How large a call that reduces is, and so with what it can go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// The call goes with others by LL16, or between two ranks by LL128.
    Small,
    /// The call goes with others by LL128 or Simple, or by LL16 if they are few.
    Middle,
    /// The call goes alone.
    Large,
}

fn size(plan: &Plan) -> Size {
    let most = if plan.segments.len() == 2 { MOST_TOGETHER } else { MOST_REDUCED_OF_MORE };
    match sent_bytes(plan) {
        0..=MOST_OF_SMALL => Size::Small,
        _ if units(plan, 1) <= most => Size::Middle,
        _ => Size::Large,
    }
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
