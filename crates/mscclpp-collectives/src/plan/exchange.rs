//! From a request to what a rank sends to whom: the same arithmetic on all ranks.

use mscclpp::DevicePtr;

use crate::{
    DataType, Error, Kind, ReduceOp, Request, Result,
    handle::{MAX_RANKS, Segment},
};

/// An exchange: see `CollectiveCall` in `collective_call_device.hpp`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// One for each rank.
    pub(crate) segments: Vec<Segment>,
    /// The operation by which incoming numbers are reduced, if they are.
    pub(crate) op: Option<ReduceOp>,
    pub(crate) data_type: DataType,
    /// The most that any rank sends to another, which all ranks know; none if they do not.
    pub(crate) most_bytes: Option<u64>,
    /// Whether some rank does not take something from every other.
    pub(crate) one_way: bool,
    /// The message of an `all_reduce`, which may be done in two steps.
    pub(crate) whole: Option<Whole>,
    /// Whether the data that a rank sends lies at the same offset of the receive memory on every peer, and here.
    pub(crate) same_offsets: bool,
}

/// A message that all ranks send to all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Whole {
    pub(crate) send: DevicePtr,
    pub(crate) recv: DevicePtr,
    pub(crate) bytes: u64,
}

/// The plan of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Planned {
    /// All ranks know that nothing is moved.
    Nothing,
    Exchange(Plan),
    /// Messages between two ranks are gathered before they are sent.
    Message {
        receives: bool,
        peer: usize,
        memory: DevicePtr,
        bytes: u64,
    },
}

/// Plans what `rank` of `ranks` does for a request, which is not a barrier: that is an exchange of words of the library's.
///
/// # Errors
/// [`Error::InvalidArgument`] for ranks that do not exist, counts that are not as many as the ranks, and sizes beyond
/// 2^62.
pub(crate) fn plan(request: &Request<'_>, rank: usize, ranks: usize) -> Result<Planned> {
    let Request { kind, send, recv, count, data_type } = *request;
    let bytes = size_of_numbers(count, data_type)?;
    // The sum over all ranks must be representable, too.
    size_of_numbers(count.saturating_mul(ranks as u64), data_type)?;
    check(request, ranks)?;
    let (given, taken) = sizes_by_rank(kind, rank, ranks, data_type)?;

    let part = |base: DevicePtr, of: usize| base.add(bytes * of as u64);
    let gives = |send| Segment { send, send_bytes: bytes, ..Segment::NONE };
    let takes = |recv| Segment { recv, recv_bytes: bytes, ..Segment::NONE };
    let both = |send, recv| Segment { send, recv, send_bytes: bytes, recv_bytes: bytes };
    let sized = |p: usize| Segment {
        send: send.add(given[p].0),
        recv: recv.add(taken[p].0),
        send_bytes: given[p].1,
        recv_bytes: taken[p].1,
    };
    // With a root: its own segment, those of the others at the root, and that of the root at the others.
    let rooted =
        |p: usize, root: usize, own: Segment, at_root: Segment, at_others: Segment| match rank == root {
            true if p == rank => own,
            true => at_root,
            false if p == root => at_others,
            false => Segment::NONE,
        };
    let segment = |p: usize| match kind {
        Kind::AllReduce(_) => both(send, recv),
        Kind::AllGather => both(send, part(recv, p)),
        Kind::ReduceScatter(_) => both(part(send, p), recv),
        Kind::AllToAll => both(part(send, p), part(recv, p)),
        Kind::AllGatherV(_) | Kind::AllToAllV { .. } => sized(p),
        Kind::Broadcast { root } => rooted(p, root, both(send, recv), gives(send), takes(recv)),
        Kind::Reduce { root, .. } => rooted(p, root, both(send, recv), Segment::NONE, gives(send)),
        Kind::Gather { root } => {
            rooted(p, root, both(send, part(recv, p)), takes(part(recv, p)), gives(send))
        }
        Kind::Scatter { root } => {
            rooted(p, root, both(part(send, p), recv), gives(part(send, p)), takes(recv))
        }
        Kind::Barrier | Kind::Send { .. } | Kind::Recv { .. } => Segment::NONE,
    };
    let most_bytes = match kind {
        Kind::Send { peer } => return Ok(Planned::Message { receives: false, peer, memory: send, bytes }),
        Kind::Recv { peer } => return Ok(Planned::Message { receives: true, peer, memory: recv, bytes }),
        Kind::Barrier => unreachable!("a barrier is planned as the exchange that does it"),
        Kind::AllGatherV(_) => taken.iter().map(|(_, bytes)| *bytes).max(),
        Kind::AllToAllV { .. } => None,
        _ => Some(bytes),
    };
    // If all ranks know that there is nothing, there is no call; if one rank has nothing, there is one.
    if most_bytes == Some(0) {
        return Ok(Planned::Nothing);
    }
    let of_all =
        matches!(kind, Kind::AllReduce(_) | Kind::AllGather | Kind::ReduceScatter(_) | Kind::AllToAll);
    Ok(Planned::Exchange(Plan {
        segments: (0..ranks).map(segment).collect(),
        op: kind.op(),
        data_type,
        most_bytes,
        one_way: !of_all,
        whole: matches!(kind, Kind::AllReduce(_)).then_some(Whole { send, recv, bytes }),
        same_offsets: matches!(kind, Kind::AllGather | Kind::AllToAll),
    }))
}

/// Checks that the ranks of a request exist, and that its factor is one.
fn check(request: &Request<'_>, ranks: usize) -> Result<()> {
    let (what, other) = match request.kind {
        Kind::Broadcast { root } => ("broadcast from", root),
        Kind::Reduce { root, .. } => ("reduce to", root),
        Kind::Gather { root } => ("gather to", root),
        Kind::Scatter { root } => ("scatter from", root),
        Kind::Send { peer } => ("send to", peer),
        Kind::Recv { peer } => ("receive from", peer),
        _ => ("", 0),
    };
    if other >= ranks {
        return Err(Error::InvalidArgument(format!("{what} {other} of {ranks} ranks")));
    }
    match request.kind.op() {
        Some(ReduceOp::PreMulSum(factor)) if !factor.is_finite() && !request.data_type.is_float() => {
            let data_type = request.data_type;
            Err(Error::InvalidArgument(format!("{data_type:?} numbers cannot be multiplied by {factor}")))
        }
        _ => Ok(()),
    }
}

/// The offset and the size, in bytes, of each rank's numbers.
type Sizes = Vec<(u64, u64)>;

/// The sizes that a rank gives to and takes from each rank, for kinds with counts.
fn sizes_by_rank(kind: Kind<'_>, rank: usize, ranks: usize, data_type: DataType) -> Result<(Sizes, Sizes)> {
    match kind {
        Kind::AllGatherV(counts) => {
            let taken = sizes("all_gather", counts, ranks, data_type)?;
            Ok((vec![(0, taken[rank].1); ranks], taken))
        }
        Kind::AllToAllV { send, recv } => {
            let given = sizes("all_to_all", send, ranks, data_type)?;
            let taken = sizes("all_to_all", recv, ranks, data_type)?;
            if given[rank].1 != taken[rank].1 {
                return Err(Error::InvalidArgument(format!(
                    "all_to_all: rank {rank} sends itself {} bytes and takes {} of them",
                    given[rank].1, taken[rank].1
                )));
            }
            Ok((given, taken))
        }
        _ => Ok((Vec::new(), Vec::new())),
    }
}

impl Plan {
    /// The size of a part of an `all_reduce` in two steps.
    pub(crate) fn part(&self) -> Option<u64> {
        let ranks = self.segments.len() as u64;
        self.whole.map(|whole| whole.bytes.div_ceil(ranks).next_multiple_of(16))
    }

    /// Whether some of the memory that `rank` sends from is memory that it writes its results to.
    pub(crate) fn overwrites_what_it_sends(&self, rank: usize) -> bool {
        let all = &self.segments;
        let is_put = |p: usize| match self.op {
            Some(_) => p == rank,
            None => p != rank || all[p].send != all[p].recv,
        };
        let sends =
            || all.iter().enumerate().filter(|(p, _)| *p != rank).map(|(_, it)| (it.send, it.send_bytes));
        all.iter()
            .enumerate()
            .any(|(p, it)| is_put(p) && sends().any(|sent| overlap((it.recv, it.recv_bytes), sent)))
    }

    /// The plan of the `all_reduce` in two steps: each rank reduces a part and gives it to all. Parts are multiples of 16
    /// bytes, but for the last, and none is empty for messages of at least [`TWO_STEPS_MIN`] bytes.
    pub(crate) fn in_two_steps(&self) -> Option<Self> {
        let Whole { send, recv, bytes } = self.whole?;
        let part = self.part()?;
        let segment = |p: usize| {
            let begin = (part * p as u64).min(bytes);
            let of_part = part.min(bytes - begin);
            Segment { send: send.add(begin), recv: recv.add(begin), send_bytes: of_part, recv_bytes: of_part }
        };
        let segments = (0..self.segments.len()).map(segment).collect();
        Some(Self { segments, most_bytes: Some(part), ..*self })
    }
}

/// The least bytes of a message that may be reduced in two steps.
pub(crate) const TWO_STEPS_MIN: u64 = 16 * (MAX_RANKS * MAX_RANKS) as u64;

/// Whether two ranges of memory overlap.
pub(crate) fn overlap((a, a_bytes): (DevicePtr, u64), (b, b_bytes): (DevicePtr, u64)) -> bool {
    a.0 < b.0.saturating_add(b_bytes) && b.0 < a.0.saturating_add(a_bytes) && a_bytes > 0 && b_bytes > 0
}

fn size_of_numbers(count: u64, data_type: DataType) -> Result<u64> {
    let bytes = count.checked_mul(data_type.size()).filter(|bytes| *bytes < 1 << 62);
    bytes.ok_or_else(|| Error::InvalidArgument(format!("{count} numbers of type {data_type:?} are too many")))
}

fn sizes(what: &str, counts: &[u64], ranks: usize, data_type: DataType) -> Result<Sizes> {
    if counts.len() != ranks {
        return Err(Error::InvalidArgument(format!("{what} with {} counts for {ranks} ranks", counts.len())));
    }
    let mut offset = 0;
    let sizes = counts.iter().map(|count| {
        let bytes = size_of_numbers(*count, data_type)?;
        let begin = offset;
        offset += bytes;
        size_of_numbers(offset, DataType::U8)?;
        Ok((begin, bytes))
    });
    sizes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: DevicePtr = DevicePtr(1 << 20);
    const RECV: DevicePtr = DevicePtr(1 << 30);

    fn planned(kind: Kind<'_>, count: u64, rank: usize, ranks: usize) -> Plan {
        let request = Request { kind, send: SEND, recv: RECV, count, data_type: DataType::F32 };
        match plan(&request, rank, ranks).unwrap() {
            Planned::Exchange(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_sent_is_overwritten_in_place_alone() {
        let plan = |kind, send, recv| {
            let request = Request { kind, send, recv, count: 6, data_type: DataType::F32 };
            match plan(&request, 1, 4).unwrap() {
                Planned::Exchange(plan) => plan.overwrites_what_it_sends(1),
                other => panic!("{other:?}"),
            }
        };
        let sum = ReduceOp::Sum;
        for kind in [Kind::AllReduce(sum), Kind::AllToAll, Kind::AllGather, Kind::ReduceScatter(sum)] {
            assert!(!plan(kind, SEND, RECV), "{kind:?}");
        }
        assert!(plan(Kind::AllReduce(sum), SEND, SEND) && plan(Kind::AllToAll, SEND, SEND));
        // Nothing is sent of its own part, or nothing is taken into it.
        assert!(
            !plan(Kind::AllGather, SEND.add(24), SEND) && !plan(Kind::ReduceScatter(sum), SEND, SEND.add(24))
        );
    }

    /// For every kind, rank a sends to rank b as much as b expects of a.
    #[test]
    fn what_is_sent_is_what_is_expected() {
        let (ranks, counts) = (5, [3, 0, 7, 1, 2]);
        let square: Vec<Vec<u64>> = (0..5).map(|a| (0..5).map(|b| a * 10 + b).collect()).collect();
        for which in 0..9 {
            let plans: Vec<_> = (0..ranks)
                .map(|rank| {
                    let column: Vec<u64> = square.iter().map(|row| row[rank]).collect();
                    let kind = match which {
                        0 => Kind::AllReduce(ReduceOp::Sum),
                        1 => Kind::AllGather,
                        2 => Kind::AllGatherV(&counts),
                        3 => Kind::ReduceScatter(ReduceOp::Max),
                        4 => Kind::AllToAll,
                        5 => Kind::AllToAllV { send: &square[rank], recv: &column },
                        6 => Kind::Broadcast { root: 3 },
                        7 => Kind::Gather { root: 1 },
                        _ => Kind::Scatter { root: 4 },
                    };
                    planned(kind, 6, rank, ranks)
                })
                .collect();
            for a in 0..ranks {
                for b in (0..ranks).filter(|b| *b != a) {
                    let (sent, expected) = (plans[a].segments[b].send_bytes, plans[b].segments[a].recv_bytes);
                    assert_eq!(sent, expected, "kind {which}, from {a} to {b}");
                    assert!(plans[a].most_bytes.is_none_or(|most| sent <= most));
                }
            }
        }
    }

    #[test]
    fn parts_of_two_steps_cover_the_message() {
        for (count, ranks) in [(1024, 2), (1025, 3), (4099, 8), (5000, 16), (1024, 16)] {
            let plan = planned(Kind::AllReduce(ReduceOp::Sum), count, 1, ranks);
            let parts = plan.in_two_steps().unwrap();
            let mut at = SEND;
            for segment in &parts.segments {
                assert_eq!(segment.send, at);
                assert!(segment.send_bytes > 0 && segment.send_bytes <= parts.most_bytes.unwrap());
                at = at.add(segment.send_bytes);
            }
            assert_eq!(at, SEND.add(count * 4), "{count} {ranks}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |kind, count| {
            let request = Request { kind, send: SEND, recv: RECV, count, data_type: DataType::F64 };
            plan(&request, 0, 4).unwrap_err().to_string()
        };
        assert!(refused(Kind::Broadcast { root: 4 }, 1).contains("from 4 of 4 ranks"));
        assert!(refused(Kind::Send { peer: 9 }, 1).contains("to 9 of 4 ranks"));
        assert!(refused(Kind::AllGatherV(&[1, 2]), 0).contains("2 counts for 4 ranks"));
        assert!(refused(Kind::AllGather, u64::MAX / 8).contains("too many"));
        assert!(refused(Kind::AllGatherV(&[u64::MAX / 16; 4]), 0).contains("too many"));
        let unlike = Kind::AllToAllV { send: &[1, 1, 1, 1], recv: &[2, 1, 1, 1] };
        assert!(refused(unlike, 0).contains("sends itself 8 bytes"));
    }

    #[test]
    fn nothing_is_nothing() {
        let request = |kind| Request { kind, send: SEND, recv: RECV, count: 0, data_type: DataType::I8 };
        assert_eq!(plan(&request(Kind::AllGather), 0, 2).unwrap(), Planned::Nothing);
        assert_eq!(plan(&request(Kind::AllGatherV(&[0, 0])), 0, 2).unwrap(), Planned::Nothing);
        // Nobody but the two ranks knows it.
        let kind = Kind::AllToAllV { send: &[0, 0], recv: &[0, 0] };
        assert!(matches!(plan(&request(kind), 0, 2).unwrap(), Planned::Exchange(_)));
    }
}
