//! Collectives that only move, across nodes: what all ranks of a node get comes to the node once, and its ranks give it to
//! each other.

use crate::{Request, handle::Segment, plan::Plan};

use super::{
    reducing::Rails,
    steps::{Across, Maker, Step, WHOLE_MAX},
};

impl Maker<'_> {
    /// Each rank sends to one rank of each node, which gives it to the others.
    pub(super) fn all_gather(&self, request: &Request<'_>, plan: &Plan) -> Vec<Step> {
        let Request { send, recv, data_type, .. } = *request;
        let topology = self.topology;
        let bytes = plan.most_bytes.unwrap_or(0);
        if bytes <= WHOLE_MAX || (0..topology.nodes()).all(|node| topology.ranks(node).len() == 1) {
            return self.directly(plan);
        }
        let (locals, index) = (topology.locals(), topology.index);
        let of = |rank: usize| recv.add(bytes * rank as u64);
        let mut moves: Vec<Across> = Vec::new();
        let mut steps = vec![Step::Copy { to: of(locals[index]), from: send, bytes }];
        let others = || (0..topology.nodes()).filter(|node| *node != topology.node);
        for node in others() {
            let theirs = topology.ranks(node);
            let peer = theirs[index % theirs.len()];
            moves.push(Across::to(peer, send, bytes));
            for peer in theirs.iter().skip(index).step_by(locals.len()).copied() {
                Across::take(&mut moves, peer, of(peer), bytes);
            }
        }
        steps.push(Step::moved(moves));
        let rounds = others().flat_map(|node| topology.ranks(node).chunks(locals.len()));
        for ranks in std::iter::once(locals).chain(rounds) {
            let at = |local: usize| ranks.get(local).map(|rank| (of(*rank), bytes));
            let segment = |local: usize| Segment::of(at(index), at(local));
            let one_way = ranks.len() < locals.len();
            steps.push(self.local(segment, None, data_type, Some(bytes), one_way));
        }
        steps
    }

    /// Where messages cost more than a step within the node, the ranks of a node first give each other what is for the ranks of
    /// another one: each sends what all of its node have for its like there, as one message.
    pub(super) fn all_to_all(&self, request: &Request<'_>, plan: &Plan) -> Vec<Step> {
        let Request { send, recv, data_type, .. } = *request;
        let topology = self.topology;
        let bytes = plan.most_bytes.unwrap_or(0);
        let (locals, nodes) = (topology.locals(), topology.nodes());
        let all = bytes * locals.len() as u64;
        let room = self.scratch_bytes / nodes as u64 / 16 * 16;
        // All ranks find the same: each node has as many.
        if !topology.is_consecutive() || all > room || bytes > WHOLE_MAX || !self.model.combines(bytes) {
            return self.directly(plan);
        }
        let mut steps = Vec::new();
        let mut moves = Vec::new();
        for node in (0..nodes).filter(|node| *node != topology.node) {
            let (theirs, place) = (topology.ranks(node), self.scratch.add(room * node as u64));
            let segment = |local: usize| Segment {
                send: send.add(bytes * theirs[local] as u64),
                recv: place.add(bytes * local as u64),
                send_bytes: bytes,
                recv_bytes: bytes,
            };
            steps.push(self.local(segment, None, data_type, Some(bytes), false));
            let recv = recv.add(bytes * theirs[0] as u64);
            let peer = theirs[topology.index];
            moves.push(Across { peer, send: place, recv, send_bytes: all, recv_bytes: all });
        }
        // Nothing of what is for other nodes is read any more, so results may come to the same place.
        steps.push(Step::moved(moves));
        steps.push(self.local(
            |local| plan.segments[locals[local]],
            None,
            data_type,
            Some(bytes),
            plan.one_way,
        ));
        steps
    }

    /// The root's node has it first; its ranks send parts to the other nodes, whose ranks give them to each other.
    pub(super) fn broadcast(&self, request: &Request<'_>, root: usize, plan: &Plan) -> Vec<Step> {
        let Request { send, recv, data_type, .. } = *request;
        let topology = self.topology;
        let bytes = plan.most_bytes.unwrap_or(0);
        let root_node = topology.node_of(root);
        let count = if bytes <= WHOLE_MAX { 1 } else { topology.fewest() };
        let rails = Rails { count, first: topology.index_of(root) };
        let mine = self.part_of(rails, topology.index);
        if topology.node != root_node {
            let take = mine.map(|n| {
                let (begin, size) = Self::part(bytes, count, n);
                Across::from(self.owner(rails, root_node, n), recv.add(begin), size)
            });
            let take = take.into_iter().filter(|it| it.recv_bytes > 0).collect();
            return vec![Step::moved(take), self.spread_parts(rails, recv, bytes, data_type)];
        }
        let is_root = topology.locals()[topology.index] == root;
        let segment = |local: usize| match (is_root, topology.locals()[local] == root) {
            // The own copy, and what others get.
            (true, own) => Segment { send, recv, send_bytes: bytes, recv_bytes: if own { bytes } else { 0 } },
            (false, true) => Segment { recv, recv_bytes: bytes, ..Segment::NONE },
            (false, false) => Segment::NONE,
        };
        let local = self.local(segment, None, data_type, Some(bytes), true);
        let give = mine.map(|n| {
            let (begin, size) = Self::part(bytes, count, n);
            let from = if is_root { send } else { recv };
            let nodes = (0..topology.nodes()).filter(|node| *node != root_node && size > 0);
            nodes
                .map(|node| Across::to(self.owner(rails, node, n), from.add(begin), size))
                .collect::<Vec<_>>()
        });
        let give = Step::moved(give.unwrap_or_default());
        if !self.has_peers() {
            return vec![give, Step::Copy { to: recv, from: send, bytes }];
        }
        // Small messages are under way before the root's own node has them.
        if count == 1 { vec![give, local] } else { vec![local, give] }
    }
}
