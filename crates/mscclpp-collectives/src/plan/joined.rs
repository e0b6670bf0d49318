//! Calls that are alike but for their roots, as one exchange.

use std::borrow::Cow;

use crate::{DataType, Kind, Request};

use super::{calls::Exchange, exchange::Plan};

/// Joins calls of one kind with different roots, whatever their sizes: broadcasts become an `all_gather` with a size for each
/// rank, reduces a `reduce_scatter`, gathers and scatters an `all_to_all`. Each goes with the first ones whose roots are others.
/// All ranks join the same ones, since they know kinds and roots.
pub(crate) fn joined<'a, 'r, 'b>(exchanges: &'a [Exchange<'r, 'b>]) -> Vec<Cow<'a, Exchange<'r, 'b>>> {
    let mut all: Vec<Joined<'a, 'r, 'b>> = Vec::with_capacity(exchanges.len());
    for exchange in exchanges {
        let (request, plan) = exchange;
        let (root, alike) = rooted(request).map_or((0, None), |(root, alike)| (1 << root, Some(alike)));
        match all.iter_mut().find(|it| alike.is_some() && it.alike == alike && it.roots & root == 0) {
            Some(joined) => joined.add(plan, root),
            None => all.push(Joined { exchange: Cow::Borrowed(exchange), alike, roots: root, even: true }),
        }
    }
    all.into_iter().map(|joined| joined.exchange).collect()
}

/// The kind with a root of 0, and the type of the numbers if they are reduced: what calls that are joined have alike.
type Alike = (Kind<'static>, Option<DataType>);

/// The root of a call that may be joined with others, and what these have alike.
fn rooted(request: &Request<'_>) -> Option<(usize, Alike)> {
    match request.kind {
        Kind::Broadcast { root } => Some((root, (Kind::Broadcast { root: 0 }, None))),
        Kind::Gather { root } => Some((root, (Kind::Gather { root: 0 }, None))),
        Kind::Scatter { root } => Some((root, (Kind::Scatter { root: 0 }, None))),
        // An exchange has one factor on each rank, and these calls may have several.
        Kind::Reduce { root, op } if !op.scales() => {
            Some((root, (Kind::Reduce { root: 0, op }, Some(request.data_type))))
        }
        _ => None,
    }
}

struct Joined<'a, 'r, 'b> {
    exchange: Cow<'a, Exchange<'r, 'b>>,
    alike: Option<Alike>,
    /// A bit for each root.
    roots: u32,
    /// Whether the sizes of all roots are the same.
    even: bool,
}

impl Joined<'_, '_, '_> {
    /// Adds the call of another root. Its segments are others, or other directions of the same.
    fn add(&mut self, plan: &Plan, root: u32) {
        let (_, into) = self.exchange.to_mut();
        for (to, from) in into.segments.iter_mut().zip(&plan.segments) {
            if from.send_bytes > 0 {
                (to.send, to.send_bytes) = (from.send, from.send_bytes);
            }
            if from.recv_bytes > 0 {
                (to.recv, to.recv_bytes) = (from.recv, from.recv_bytes);
            }
        }
        self.roots |= root;
        self.even &= into.most_bytes == plan.most_bytes;
        into.most_bytes = into.most_bytes.max(plan.most_bytes);
        into.one_way = !(self.even && self.roots.count_ones() as usize == into.segments.len());
    }
}

#[cfg(test)]
mod tests {
    use mscclpp::DevicePtr;

    use super::*;
    use crate::{
        ReduceOp,
        plan::{Planned, plan},
    };

    const RANKS: usize = 3;

    /// The plans of all ranks of calls of these kinds and counts, joined.
    fn joined_by_all(calls: &[(Kind<'static>, u64)]) -> Vec<Vec<Plan>> {
        let requests: Vec<_> = (1..)
            .zip(calls)
            .map(|(i, (kind, count))| Request {
                kind: *kind,
                send: DevicePtr(i << 20),
                recv: DevicePtr(i << 30),
                count: *count,
                data_type: DataType::F32,
            })
            .collect();
        let of = |rank| {
            let planned = |request| match plan(request, rank, RANKS).unwrap() {
                Planned::Exchange(plan) => (request, plan),
                other => panic!("{other:?}"),
            };
            let exchanges: Vec<_> = requests.iter().map(planned).collect();
            joined(&exchanges).into_iter().map(|exchange| exchange.into_owned().1).collect()
        };
        (0..RANKS).map(of).collect()
    }

    #[test]
    fn a_set_of_roots_is_one_exchange_in_which_ranks_expect_what_is_sent() {
        let broadcast = |root| Kind::Broadcast { root };
        // The second of root 1 goes with the second of root 0, and the gather with none.
        let calls = [
            (broadcast(0), 5),
            (broadcast(1), 6),
            (broadcast(1), 7),
            (Kind::Gather { root: 2 }, 9),
            (broadcast(0), 7),
        ];
        let plans = joined_by_all(&calls);
        for a in 0..RANKS {
            assert_eq!(plans[a].len(), 3, "{plans:?}");
            for b in (0..RANKS).filter(|b| *b != a) {
                for (sent, expected) in plans[a].iter().zip(&plans[b]) {
                    assert_eq!(sent.segments[b].send_bytes, expected.segments[a].recv_bytes);
                }
            }
        }
        let sizes = |at: usize| plans[0][at].segments.iter().map(|it| it.recv_bytes).collect::<Vec<_>>();
        assert_eq!((sizes(0), sizes(1), sizes(2)), (vec![20, 24, 0], vec![28, 28, 0], vec![0; 3]));
        assert_eq!([0, 1].map(|at| plans[2][at].most_bytes), [Some(24), Some(28)]);
        assert!(plans.iter().flatten().all(|plan| plan.one_way));
    }

    #[test]
    fn every_rank_takes_something_from_every_other_if_each_is_a_root_of_as_much() {
        let reduce = |root, op| Kind::Reduce { root, op };
        let of = |counts: [u64; 3], op| {
            let calls: Vec<_> = (0..).zip(counts).map(|(root, count)| (reduce(root, op), count)).collect();
            joined_by_all(&calls)
        };
        let even = of([4; 3], ReduceOp::Sum);
        assert!(even.iter().all(|plans| matches!(&plans[..], [plan] if !plan.one_way)), "{even:?}");
        let uneven = of([4, 5, 4], ReduceOp::Sum);
        assert!(uneven.iter().all(|plans| matches!(&plans[..], [plan] if plan.one_way)), "{uneven:?}");
        assert_eq!(of([4; 3], ReduceOp::PreMulSum(2.0))[0].len(), 3);
    }
}
