//! Collectives that reduce, across nodes: each node reduces the numbers of its ranks, in their order, and the results of
//! the nodes are reduced in the order of the nodes by whoever needs them. Sizes decide only who sends what to whom.

use mscclpp::DevicePtr;

use crate::{DataType, ReduceOp, Request, choice::Pattern, handle::Segment, plan::Plan};

use super::steps::{Across, Maker, Origin, Portion, Reduction, Step, WHOLE_MAX, within_a_node};

/// A large message goes by portions of at least so many bytes, and so many at most.
const PORTION_MIN: u64 = 4 << 20;
const PORTIONS_MAX: u64 = 8;

/// Which ranks of a node have a part of a message each: as many on every node.
#[derive(Clone, Copy)]
pub(super) struct Rails {
    pub(super) count: usize,
    /// The number, on its node, of the rank that has the first part.
    pub(super) first: usize,
}

impl Maker<'_> {
    pub(super) fn has_peers(&self) -> bool {
        self.topology.locals().len() > 1
    }

    /// The rank of a node that has part `n`.
    pub(super) fn owner(&self, rails: Rails, node: usize, n: usize) -> usize {
        let ranks = self.topology.ranks(node);
        ranks[(rails.first + n) % ranks.len()]
    }

    /// The part that a rank of this node has.
    pub(super) fn part_of(&self, rails: Rails, local: usize) -> Option<usize> {
        let ranks = self.topology.locals().len();
        (0..rails.count).find(|n| (rails.first + n) % ranks == local)
    }

    /// Whether every rank of this node has a part, and no part is empty: then each takes something from each other.
    fn all_take(&self, rails: Rails, bytes: u64) -> bool {
        let last = Self::part(bytes, rails.count, rails.count - 1).1;
        rails.count == self.topology.locals().len() && last > 0
    }

    /// This node reduces `bytes` bytes at `send`: each part comes to `to` of its begin, at who has it.
    fn reduce_parts(
        &self,
        rails: Rails,
        (send, bytes): (DevicePtr, u64),
        to: impl Fn(u64) -> DevicePtr,
        op: ReduceOp,
        data_type: DataType,
    ) -> Step {
        let part = |n: usize| Self::part(bytes, rails.count, n);
        let segment = |local: usize| {
            let Some((begin, size)) = self.part_of(rails, local).map(part) else { return Segment::NONE };
            let recv = (local == self.topology.index).then(|| (to(begin), size));
            Segment::of(Some((send.add(begin), size)), recv)
        };
        let one_way = !self.all_take(rails, bytes);
        self.local(segment, Some(within_a_node(op)), data_type, Some(part(0).1), one_way)
    }

    /// Each rank that has a part gives it to all ranks of this node. A part is at its offset from `base` on every rank.
    pub(super) fn spread_parts(
        &self,
        rails: Rails,
        base: DevicePtr,
        bytes: u64,
        data_type: DataType,
    ) -> Step {
        let of = |local: usize| {
            let (begin, size) = Self::part(bytes, rails.count, self.part_of(rails, local)?);
            Some((base.add(begin), size))
        };
        let segment = |local: usize| Segment::of(of(self.topology.index), of(local));
        let most = Self::part(bytes, rails.count, 0).1;
        self.local(segment, None, data_type, Some(most), !self.all_take(rails, bytes))
    }

    /// The sources of a reduction: what `source` says of each node.
    pub(super) fn reduction(
        &self,
        sources: Vec<Origin>,
        (recv, bytes): (DevicePtr, u64),
        most: u64,
        op: ReduceOp,
        data_type: DataType,
    ) -> Step {
        let raw = !self.has_peers();
        // The node has multiplied its numbers already, so they are only added here.
        let op = if op.scales() && !raw { ReduceOp::Sum } else { op };
        let own = self.topology.node;
        Step::Reduce(Box::new(Reduction { sources, own, recv, bytes, most, op, data_type, raw }))
    }

    pub(super) fn all_reduce(&self, request: &Request<'_>, op: ReduceOp, plan: &Plan) -> Vec<Step> {
        let Request { send, recv, data_type, .. } = *request;
        let topology = self.topology;
        let bytes = plan.most_bytes.unwrap_or(0);
        let nodes = topology.nodes();
        let pattern = if topology.even().is_some() { self.pattern(op, bytes) } else { Pattern::Shares };
        if pattern != Pattern::Shares {
            let everywhere = Segment { send, recv, send_bytes: bytes, recv_bytes: bytes };
            let local = self.local(|_| everywhere, Some(within_a_node(op)), data_type, Some(bytes), false);
            let mine = if self.has_peers() { recv } else { send };
            let mut steps = vec![local];
            if pattern == Pattern::Doubling {
                steps.extend(self.doubling((mine, recv, bytes), op, data_type));
            } else {
                let source = |node| self.source(node, topology.index, (mine, bytes), (mine, bytes));
                let sources = (0..nodes).map(source).collect();
                steps.push(self.reduction(sources, (recv, bytes), bytes, op, data_type));
            }
            return steps;
        }
        let rails = Rails { count: topology.fewest(), first: 0 };
        // While one is between nodes, the ranks of a node are busy with others. A rank alone would only begin again with each.
        let most = if topology.even() == Some(1) { 1 } else { PORTIONS_MAX };
        let portions = (bytes / PORTION_MIN).clamp(1, most) as usize;
        let portion = |n: usize| {
            let (at, size) = Self::part(bytes, portions, n);
            let (send, recv) = (send.add(at), recv.add(at));
            let before = self.reduce_parts(rails, (send, size), |begin| recv.add(begin), op, data_type);
            let between = self.part_of(rails, topology.index).map(|n| {
                let (begin, size) = Self::part(size, rails.count, n);
                let from = if self.has_peers() { recv } else { send };
                self.across(rails, n, (from.add(begin), recv.add(begin), size), op, data_type)
            });
            let after = self.spread_parts(rails, recv, size, data_type);
            Portion { before, between: between.unwrap_or_default(), after }
        };
        vec![Step::Portions((0..portions).map(portion).collect())]
    }

    /// The source of a node whose rank of number `index` is sent `sent`; `here` if it is this node.
    pub(super) fn source(
        &self,
        node: usize,
        index: usize,
        sent: (DevicePtr, u64),
        here: (DevicePtr, u64),
    ) -> Origin {
        if node == self.topology.node {
            return Origin::Here(here.0);
        }
        Origin::Peer { peer: self.topology.ranks(node)[index], send: sent.0, send_bytes: sent.1 }
    }

    /// For each rank of each node, its node reduces, and so does a rank of each other node with the numbers of its own node;
    /// that one sends them.
    pub(super) fn reduce_scatter(&self, request: &Request<'_>, op: ReduceOp, plan: &Plan) -> Vec<Step> {
        let Request { send, recv, data_type, .. } = *request;
        let topology = self.topology;
        let (nodes, node, index) = (topology.nodes(), topology.node, topology.index);
        let ranks = topology.locals().len();
        let bytes = plan.most_bytes.unwrap_or(0);
        let of = |rank: usize| send.add(bytes * rank as u64);
        let own_rank = topology.locals()[index];
        // Results of this node for others, and what comes of others: a place for each, in the largest case of all ranks.
        let most_sent = (0..nodes).map(|at| {
            let here = topology.ranks(at).len();
            (0..nodes).filter(|h| *h != at).map(|h| topology.ranks(h).len().div_ceil(here)).sum::<usize>()
        });
        let places = most_sent.max().unwrap_or(1) + nodes - 1;
        let chunk = (self.scratch_bytes / places as u64 / 16 * 16).max(16);
        let mut steps = Vec::new();
        let mut at = 0;
        while at < bytes {
            let size = chunk.min(bytes - at);
            let mut places = (0..).map(|n: u64| self.scratch.add(n * chunk));
            let mut place = || places.next().unwrap_or(self.scratch);
            let mut moves: Vec<Across> = Vec::new();
            let mut sources =
                vec![Origin::Here(if self.has_peers() { recv.add(at) } else { of(own_rank).add(at) }); nodes];
            for other in (0..nodes).filter(|other| *other != node) {
                let theirs = topology.ranks(other);
                for round in 0..theirs.len().div_ceil(ranks) {
                    let dest = |local: usize| theirs.get(round * ranks + local).copied();
                    let mine = dest(index);
                    let to = match (self.has_peers(), mine) {
                        (true, _) => place(),
                        (false, Some(dest)) => of(dest).add(at),
                        (false, None) => continue,
                    };
                    steps.push(self.for_ranks(dest, |rank| of(rank).add(at), (to, size), op, data_type));
                    if let Some(peer) = mine {
                        moves.push(Across::to(peer, to, size));
                    }
                }
                // The rank of that node which reduces its numbers for this rank sends them.
                let peer = theirs[index % theirs.len()];
                let to = place();
                sources[other] = Origin::Here(to);
                Across::take(&mut moves, peer, to, size);
            }
            let locals = topology.locals();
            steps.push(self.for_ranks(
                |local| locals.get(local).copied(),
                |rank| of(rank).add(at),
                (recv.add(at), size),
                op,
                data_type,
            ));
            if topology.even().is_some() {
                // Each rank sends to whom it takes from, so what comes is reduced where it comes.
                for it in &moves {
                    sources[topology.node_of(it.peer)] =
                        Origin::Peer { peer: it.peer, send: it.send, send_bytes: it.send_bytes };
                }
                moves.clear();
            }
            steps.push(Step::Move { moves, raw: (!self.has_peers()).then_some((op, data_type)) });
            steps.push(self.reduction(sources, (recv.add(at), size), size, op, data_type));
            at += size;
        }
        steps
    }

    /// This node reduces what is at `of` for the rank that `dest` says of each of its ranks, which gets it at `to`.
    fn for_ranks(
        &self,
        dest: impl Fn(usize) -> Option<usize>,
        of: impl Fn(usize) -> DevicePtr,
        (to, size): (DevicePtr, u64),
        op: ReduceOp,
        data_type: DataType,
    ) -> Step {
        let ranks = self.topology.locals().len();
        let segment = |local: usize| {
            let Some(rank) = dest(local) else { return Segment::NONE };
            Segment::of(Some((of(rank), size)), (local == self.topology.index).then_some((to, size)))
        };
        let one_way = (0..ranks).any(|local| dest(local).is_none());
        self.local(segment, Some(within_a_node(op)), data_type, Some(size), one_way)
    }

    /// Each node reduces parts, which its ranks send to their likes on the root's node; these give the sums to the root.
    pub(super) fn reduce(&self, request: &Request<'_>, root: usize, op: ReduceOp, plan: &Plan) -> Vec<Step> {
        let Request { send, recv, data_type, .. } = *request;
        let topology = self.topology;
        let all = plan.most_bytes.unwrap_or(0);
        let root_node = topology.node_of(root);
        let count = if all <= WHOLE_MAX { 1 } else { topology.fewest() };
        let rails = Rails { count, first: topology.index_of(root) };
        let mine = self.part_of(rails, topology.index);
        let is_root = topology.locals()[topology.index] == root;
        let mut steps = Vec::new();
        let mut at = 0;
        // A part is no larger than the scratch.
        let chunk = (self.scratch_bytes / 16 * 16).max(16);
        while at < all {
            let bytes = chunk.min(all - at);
            let to = |begin: u64| if is_root { recv.add(at + begin) } else { self.scratch.add(begin) };
            steps.push(self.reduce_parts(rails, (send.add(at), bytes), to, op, data_type));
            if let Some(n) = mine {
                let (begin, size) = Self::part(bytes, count, n);
                let own = if self.has_peers() { to(begin) } else { send.add(at + begin) };
                if topology.node == root_node {
                    let source = |node: usize| {
                        let index = topology.index_of(self.owner(rails, node, n));
                        self.source(node, index, (DevicePtr::NULL, 0), (own, size))
                    };
                    let sources = (0..topology.nodes()).map(source).collect();
                    steps.push(self.reduction(sources, (to(begin), size), size, op, data_type));
                } else {
                    let peer = self.owner(rails, root_node, n);
                    let moves = if size > 0 { vec![Across::to(peer, own, size)] } else { Vec::new() };
                    steps.push(Step::Move { moves, raw: (!self.has_peers()).then_some((op, data_type)) });
                }
            }
            if topology.node == root_node && count > 1 {
                let part = |n: usize| {
                    let (begin, size) = Self::part(bytes, count, n);
                    (to(begin), size)
                };
                let segment = |local: usize| {
                    let gives = !is_root && topology.locals()[local] == root;
                    let takes = is_root && local != topology.index;
                    let theirs = self.part_of(rails, local);
                    Segment::of(mine.filter(|_| gives).map(part), theirs.filter(|_| takes).map(part))
                };
                steps.push(self.local(segment, None, data_type, Some(Self::part(bytes, count, 0).1), true));
            }
            at += bytes;
        }
        steps
    }
}
