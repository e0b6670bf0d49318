//! How the numbers of nodes become one in an `all_reduce`, of all three patterns but the simplest.

use mscclpp::DevicePtr;

use crate::{DataType, ReduceOp, choice::Pattern};

use super::{
    reducing::Rails,
    steps::{Across, Maker, Origin, Step},
};

impl Maker<'_> {
    /// How an `all_reduce` goes, where all nodes have as many ranks: all ranks choose alike.
    pub(super) fn pattern(&self, op: ReduceOp, bytes: u64) -> Pattern {
        let nodes = self.topology.nodes() as u64;
        match self.model.predict(bytes).map(|it| it.pattern) {
            // What is passed on must not be multiplied twice, and all of it must have room.
            Ok(Pattern::Doubling)
                if bytes.next_multiple_of(16) > self.scratch_bytes / nodes
                    || !self.has_peers() && op.scales() =>
            {
                Pattern::Whole
            }
            Ok(pattern) => pattern,
            Err(_) => Pattern::Shares,
        }
    }

    /// Gathers the numbers of all nodes, twice as many in each step, and reduces them.
    pub(super) fn doubling(
        &self,
        (mine, recv, bytes): (DevicePtr, DevicePtr, u64),
        op: ReduceOp,
        data_type: DataType,
    ) -> Vec<Step> {
        let (nodes, node) = (self.topology.nodes(), self.topology.node);
        let place = |of: usize| self.scratch.add(bytes.next_multiple_of(16) * of as u64);
        let mut steps = vec![Step::Copy { to: place(node), from: mine, bytes }];
        for round in 0..nodes.ilog2() {
            let other = node ^ 1 << round;
            // Both have so many, which begin at a multiple of their number.
            let first = |of: usize| of >> round << round;
            let size = bytes.next_multiple_of(16) << round;
            let peer = self.topology.ranks(other)[self.topology.index];
            let (send, recv) = (place(first(node)), place(first(other)));
            steps.push(Step::moved(vec![Across { peer, send, recv, send_bytes: size, recv_bytes: size }]));
        }
        let sources = (0..nodes).map(|of| Origin::Here(place(of))).collect();
        steps.push(self.reduction(sources, (recv, bytes), bytes, op, data_type));
        steps
    }

    /// Who has part `n` on each node makes the sums of it, and all of them get it: each reduces what comes, or a share of it
    /// and then sends the result to the others.
    pub(super) fn across(
        &self,
        rails: Rails,
        n: usize,
        (from, to, bytes): (DevicePtr, DevicePtr, u64),
        op: ReduceOp,
        data_type: DataType,
    ) -> Vec<Step> {
        let (nodes, node) = (self.topology.nodes(), self.topology.node);
        let index = |of: usize| self.topology.index_of(self.owner(rails, of, n));
        if nodes == 2 {
            let source = |of| self.source(of, index(of), (from, bytes), (from, bytes));
            return vec![self.reduction((0..2).map(source).collect(), (to, bytes), bytes, op, data_type)];
        }
        let share = |of: usize| Self::part(bytes, nodes, of);
        let (begin, size) = share(node);
        let sources = (0..nodes).map(|of| {
            let (theirs, their_size) = share(of);
            self.source(of, index(of), (from.add(theirs), their_size), (from.add(begin), size))
        });
        let reduce = self.reduction(sources.collect(), (to.add(begin), size), share(0).1, op, data_type);
        let moves = (0..nodes).filter(|of| *of != node).map(|of| {
            let (theirs, recv_bytes) = share(of);
            let peer = self.owner(rails, of, n);
            Across { peer, send: to.add(begin), recv: to.add(theirs), send_bytes: size, recv_bytes }
        });
        let moves = moves.filter(|it| it.send_bytes > 0 || it.recv_bytes > 0);
        vec![reduce, Step::moved(moves.collect())]
    }
}
