//! From a request to what a rank sends to whom: the same arithmetic on all ranks.

use mscclpp::DevicePtr;

use crate::{
    DataType, Error, Kind, ReduceOp, Request, Result,
    handle::{MAX_RANKS, Segment},
    register::overlap,
};

/// An exchange: see `CollectiveCall` in `collective_call_device.hpp`.
///
/// `N` is the most ranks that it has room for: those on one node, or those on several.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan<const N: usize = MAX_RANKS> {
    pub(crate) segments: [Segment; N],
    /// How what comes is reduced, if it is.
    pub(crate) op: Option<ReduceOp>,
    pub(crate) data_type: DataType,
    /// The most that any rank sends to another, which all ranks know; none if they do not.
    pub(crate) most_bytes: Option<u64>,
    /// Whether some rank does not take something from every other.
    pub(crate) one_way: bool,
    /// The message of an `all_reduce`, which may be done in two steps.
    pub(crate) whole: Option<Whole>,
    /// Whether what a rank sends to a peer lies there as its own part lies here: at the same offset of the receive memory.
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
pub(crate) enum Planned<const N: usize = MAX_RANKS> {
    /// Nothing is moved.
    Nothing,
    Exchange(Box<Plan<N>>),
    /// Messages between two ranks are gathered before they are sent.
    Message {
        receives: bool,
        peer: usize,
        memory: DevicePtr,
        bytes: u64,
    },
}

/// Plans what `rank` of `ranks` does for a request.
///
/// # Errors
/// [`Error::InvalidArgument`] for ranks that do not exist, counts that are not as many as the ranks, and sizes beyond
/// 2^62.
pub(crate) fn plan<const N: usize>(request: &Request<'_>, rank: usize, ranks: usize) -> Result<Planned<N>> {
    let Request { kind, send, recv, count, data_type } = *request;
    let bytes = size_of_numbers(count, data_type)?;
    // The sum over all ranks must be representable, too.
    size_of_numbers(count.saturating_mul(ranks as u64), data_type)?;
    let exists = |what: &str, other: usize| match other < ranks {
        true => Ok(()),
        false => Err(Error::InvalidArgument(format!("{what} {other} of {ranks} ranks"))),
    };
    let others = || (0..ranks).filter(|p| *p != rank);
    let place = |base: DevicePtr, of: usize| base.add(bytes * of as u64);
    let mut segments = [Segment::NONE; N];
    let mut reduced = None;
    let mut one_way = false;
    let mut most_bytes = Some(bytes);
    let mut whole = None;
    match kind {
        Kind::AllReduce(op) => {
            segments[..ranks].fill(Segment { send, recv, send_bytes: bytes, recv_bytes: bytes });
            reduced = Some(op);
            whole = Some(Whole { send, recv, bytes });
        }
        Kind::AllGather => {
            for (p, segment) in segments[..ranks].iter_mut().enumerate() {
                *segment = Segment { send, recv: place(recv, p), send_bytes: bytes, recv_bytes: bytes };
            }
        }
        Kind::AllGatherV(counts) => {
            let sizes = sizes("all_gather", counts, ranks, data_type)?;
            for (p, segment) in segments[..ranks].iter_mut().enumerate() {
                let (offset, recv_bytes) = sizes[p];
                *segment = Segment { send, recv: recv.add(offset), send_bytes: sizes[rank].1, recv_bytes };
            }
            most_bytes = sizes.iter().map(|(_, bytes)| *bytes).max();
            one_way = true;
        }
        Kind::ReduceScatter(op) => {
            for (p, segment) in segments[..ranks].iter_mut().enumerate() {
                *segment = Segment { send: place(send, p), recv, send_bytes: bytes, recv_bytes: bytes };
            }
            reduced = Some(op);
        }
        Kind::AllToAll => {
            for (p, segment) in segments[..ranks].iter_mut().enumerate() {
                *segment = Segment {
                    send: place(send, p),
                    recv: place(recv, p),
                    send_bytes: bytes,
                    recv_bytes: bytes,
                };
            }
        }
        Kind::AllToAllV { send: sent, recv: received } => {
            let (sent, received) = (
                sizes("all_to_all", sent, ranks, data_type)?,
                sizes("all_to_all", received, ranks, data_type)?,
            );
            if sent[rank].1 != received[rank].1 {
                return Err(Error::InvalidArgument(format!(
                    "all_to_all: rank {rank} sends itself {} bytes and takes {} of them",
                    sent[rank].1, received[rank].1
                )));
            }
            for (p, segment) in segments[..ranks].iter_mut().enumerate() {
                let ((from, send_bytes), (to, recv_bytes)) = (sent[p], received[p]);
                *segment = Segment { send: send.add(from), recv: recv.add(to), send_bytes, recv_bytes };
            }
            (most_bytes, one_way) = (None, true);
        }
        Kind::Broadcast { root } => {
            exists("broadcast from", root)?;
            if rank == root {
                segments[..ranks].fill(Segment { send, recv, send_bytes: bytes, recv_bytes: 0 });
                segments[rank].recv_bytes = bytes;
            } else {
                segments[root] = Segment { recv, recv_bytes: bytes, ..Segment::NONE };
            }
            one_way = true;
        }
        Kind::Reduce { root, op } => {
            exists("reduce to", root)?;
            if rank == root {
                segments[rank] = Segment { send, recv, send_bytes: bytes, recv_bytes: bytes };
            } else {
                segments[root] = Segment { send, send_bytes: bytes, ..Segment::NONE };
            }
            (reduced, one_way) = (Some(op), true);
        }
        Kind::Gather { root } => {
            exists("gather to", root)?;
            if rank == root {
                others().for_each(|p| {
                    segments[p] = Segment { recv: place(recv, p), recv_bytes: bytes, ..Segment::NONE };
                });
                segments[rank] =
                    Segment { send, recv: place(recv, rank), send_bytes: bytes, recv_bytes: bytes };
            } else {
                segments[root] = Segment { send, send_bytes: bytes, ..Segment::NONE };
            }
            one_way = true;
        }
        Kind::Scatter { root } => {
            exists("scatter from", root)?;
            if rank == root {
                others().for_each(|p| {
                    segments[p] = Segment { send: place(send, p), send_bytes: bytes, ..Segment::NONE };
                });
                segments[rank] =
                    Segment { send: place(send, rank), recv, send_bytes: bytes, recv_bytes: bytes };
            } else {
                segments[root] = Segment { recv, recv_bytes: bytes, ..Segment::NONE };
            }
            one_way = true;
        }
        Kind::Barrier => unreachable!("a barrier has memory of the collectives' own"),
        Kind::Send { peer } => {
            exists("send to", peer)?;
            return Ok(Planned::Message { receives: false, peer, memory: send, bytes });
        }
        Kind::Recv { peer } => {
            exists("receive from", peer)?;
            return Ok(Planned::Message { receives: true, peer, memory: recv, bytes });
        }
    }
    if let Some(op) = reduced {
        // A whole number cannot be multiplied by what is none.
        if let ReduceOp::PreMulSum(factor) = op
            && !factor.is_finite()
            && !data_type.is_float()
        {
            return Err(Error::InvalidArgument(format!(
                "{data_type:?} numbers cannot be multiplied by {factor}"
            )));
        }
    }
    // What all ranks know to be nothing is no call; what one rank has nothing of is one.
    if most_bytes == Some(0) {
        return Ok(Planned::Nothing);
    }
    let same_offsets = matches!(kind, Kind::AllGather | Kind::AllToAll);
    let plan = Plan { segments, op: reduced, data_type, most_bytes, one_way, whole, same_offsets };
    Ok(Planned::Exchange(Box::new(plan)))
}

impl Plan {
    /// The size of a part of an `all_reduce` in two steps.
    pub(crate) fn part(&self, ranks: usize) -> Option<u64> {
        self.whole.map(|whole| whole.bytes.div_ceil(ranks as u64).next_multiple_of(16))
    }

    /// Whether some of what `rank` sends to others lies where it puts what it takes, or reduces.
    pub(crate) fn overwrites_what_it_sends(&self, rank: usize, ranks: usize) -> bool {
        let all = &self.segments[..ranks];
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
    pub(crate) fn in_two_steps(&self, ranks: usize) -> Option<Self> {
        let Whole { send, recv, bytes } = self.whole?;
        let part = self.part(ranks)?;
        let mut plan = self.clone();
        for (p, segment) in plan.segments[..ranks].iter_mut().enumerate() {
            let begin = (part * p as u64).min(bytes);
            let of_part = part.min(bytes - begin);
            *segment = Segment {
                send: send.add(begin),
                recv: recv.add(begin),
                send_bytes: of_part,
                recv_bytes: of_part,
            };
        }
        plan.most_bytes = Some(part);
        Some(plan)
    }
}

/// From how many bytes on a message may be reduced in two steps.
pub(crate) const TWO_STEPS_MIN: u64 = 16 * (MAX_RANKS * MAX_RANKS) as u64;

fn size_of_numbers(count: u64, data_type: DataType) -> Result<u64> {
    let bytes = count.checked_mul(data_type.size()).filter(|bytes| *bytes < 1 << 62);
    bytes.ok_or_else(|| Error::InvalidArgument(format!("{count} numbers of type {data_type:?} are too many")))
}

/// The offset and the size, in bytes, of each rank's numbers.
fn sizes(what: &str, counts: &[u64], ranks: usize, data_type: DataType) -> Result<Vec<(u64, u64)>> {
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
            Planned::Exchange(plan) => *plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_sent_is_overwritten_in_place_alone() {
        let plan = |kind, send, recv| {
            let request = Request { kind, send, recv, count: 6, data_type: DataType::F32 };
            match plan::<MAX_RANKS>(&request, 1, 4).unwrap() {
                Planned::Exchange(plan) => plan.overwrites_what_it_sends(1, 4),
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

    /// Rank a sends to rank b what b expects of a, for every kind.
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
            let parts = plan.in_two_steps(ranks).unwrap();
            let mut at = SEND;
            for segment in &parts.segments[..ranks] {
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
            plan::<MAX_RANKS>(&request, 0, 4).unwrap_err().to_string()
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
        let plan = plan::<MAX_RANKS>;
        assert_eq!(plan(&request(Kind::AllGather), 0, 2).unwrap(), Planned::Nothing);
        assert_eq!(plan(&request(Kind::AllGatherV(&[0, 0])), 0, 2).unwrap(), Planned::Nothing);
        // Nobody but the two ranks knows it.
        let kind = Kind::AllToAllV { send: &[0, 0], recv: &[0, 0] };
        assert!(matches!(plan(&request(kind), 0, 2).unwrap(), Planned::Exchange(_)));
    }
}
