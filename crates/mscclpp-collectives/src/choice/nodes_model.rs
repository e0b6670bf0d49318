//! How an `all_reduce` goes between nodes: what takes the least time by a model.
//!
//! | pattern | what a rank sends to other nodes, of a message of n bytes, for h nodes of r ranks | waits after each other |
//! | --- | --- | --- |
//! | whole | n to each | 1 |
//! | doubling | n, 2n, 4n and so on, to one each | log2 h |
//! | shares | n / (r h) to each, twice; between two nodes n / r once | 2; between two nodes 1 |
//!
//! A wait takes the latency of the network, and a message its own time at the sender and its bytes by the bandwidth of the rank's
//! rail. The node needs a step before, and with shares another one behind. All this is a prediction.

use mscclpp::Transport;

use crate::{Error, Result};

/// Nodes and what joins them, for [predictions](NodesModel::predict) of an `all_reduce`.
///
/// ```
/// use mscclpp_collectives::{NodesModel, Pattern};
///
/// let few = NodesModel { nodes: 2, ranks: 8, ..NodesModel::INFINIBAND };
/// assert_eq!(few.predict(1 << 10)?.pattern, Pattern::Whole);
/// assert_eq!(few.predict(1 << 30)?.pattern, Pattern::Shares);
/// let many = NodesModel { nodes: 1024, ..few };
/// assert_eq!(many.predict(1 << 10)?.pattern, Pattern::Doubling);
/// # Ok::<(), mscclpp_collectives::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodesModel {
    /// How many nodes, at least 2.
    pub nodes: u32,
    /// The ranks of each, at least 1. Each has a rail of its own.
    pub ranks: u32,
    /// From a rank's signal to its being seen on another node, in microseconds.
    pub latency: f64,
    /// The time that each message takes its sender, in microseconds.
    pub message: f64,
    /// The bandwidth of a rail, one way, in GB/s.
    pub bandwidth: f64,
}

/// How an `all_reduce` goes between nodes. The bits are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// Each rank sends the sums of its node to its like on each other node, and reduces what comes.
    Whole,
    /// In each step a rank exchanges the sums of all nodes that it has with one other, so it has twice as many; it reduces at the
    /// end. For numbers of nodes that are powers of two.
    Doubling,
    /// Each rank has a part of the message; of that, each of its likes reduces a share and sends it to the others.
    Shares,
}

/// The time and the messages of an `all_reduce` by the model.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct NodesPrediction {
    /// The fastest pattern.
    pub pattern: Pattern,
    /// The time of the fastest pattern, in microseconds.
    pub time: f64,
    /// How many messages a rank sends to other nodes, at most.
    pub messages: u32,
    /// How many bytes these are together.
    pub bytes: u64,
}

/// A step within a node: its start in microseconds, and its bandwidth in GB/s.
const STEP: f64 = 5.0;
const WITHIN: f64 = 300.0;

impl NodesModel {
    /// A network of fast RDMA adapters. Nobody has measured these with this library: latency and the time of a message are of the
    /// size that adapters have.
    pub const INFINIBAND: Self = Self { nodes: 2, ranks: 8, latency: 8.0, message: 0.5, bandwidth: 45.0 };
    /// TCP on a fast network; also not measured.
    pub const ETHERNET: Self = Self { nodes: 2, ranks: 8, latency: 30.0, message: 5.0, bandwidth: 3.0 };

    /// The network that a transport is taken for.
    pub(crate) fn of(transport: Transport) -> Self {
        if transport == Transport::ETHERNET { Self::ETHERNET } else { Self::INFINIBAND }
    }

    /// The fastest pattern for a message of so many bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for fewer than two nodes, for no rank, and for times and bandwidths that are none.
    pub fn predict(&self, bytes: u64) -> Result<NodesPrediction> {
        let numbers = [self.latency, self.message, self.bandwidth];
        if self.nodes < 2 || self.ranks == 0 || numbers.iter().any(|it| !it.is_finite() || *it <= 0.0) {
            return Err(Error::InvalidArgument(format!(
                "{self:?}; give two nodes or more, a rank or more, and times and a bandwidth above 0"
            )));
        }
        let all = [Pattern::Whole, Pattern::Doubling, Pattern::Shares].map(|pattern| self.by(pattern, bytes));
        let fastest = all.into_iter().flatten().min_by(|a, b| a.time.total_cmp(&b.time));
        fastest.ok_or_else(|| Error::InvalidArgument(format!("{self:?} has no pattern")))
    }

    /// Whether ranks of a node that have so many bytes each for the ranks of another one should give them to each other first,
    /// so that each sends one message there: if the messages that are saved take longer than a step within the node.
    pub(crate) fn combines(&self, bytes: u64) -> bool {
        let ranks = f64::from(self.ranks);
        (ranks - 1.0) * self.message > STEP + ranks * bytes as f64 / (WITHIN * 1e3)
    }

    /// The prediction for a pattern, if this many nodes can follow it.
    fn by(&self, pattern: Pattern, bytes: u64) -> Option<NodesPrediction> {
        let (others, nodes) = (self.nodes - 1, u64::from(self.nodes));
        let (waits, messages, sent, steps) = match pattern {
            Pattern::Whole => (1, others, bytes.saturating_mul(others.into()), 1.0),
            Pattern::Doubling if self.nodes.is_power_of_two() && self.nodes > 2 => {
                let rounds = self.nodes.ilog2();
                (rounds, rounds, bytes.saturating_mul(others.into()), 1.0)
            }
            Pattern::Doubling => return None,
            Pattern::Shares if self.nodes == 2 => (1, 1, bytes.div_ceil(self.ranks.into()), 2.0),
            Pattern::Shares => {
                let share = bytes.div_ceil(u64::from(self.ranks) * nodes);
                (2, 2 * others, share.saturating_mul(2 * u64::from(others)), 2.0)
            }
        };
        let within = if self.ranks > 1 { steps * (STEP + bytes as f64 / (WITHIN * 1e3)) } else { 0.0 };
        let between = f64::from(waits) * self.latency
            + f64::from(messages) * self.message
            + sent as f64 / (self.bandwidth * 1e3);
        Some(NodesPrediction { pattern, time: within + between, messages, bytes: sent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_change_with_the_size_once() {
        for nodes in [2, 3, 4, 8, 64, 256, 1024] {
            for ranks in [1, 8] {
                for model in [NodesModel::INFINIBAND, NodesModel::ETHERNET] {
                    let model = NodesModel { nodes, ranks, ..model };
                    let all: Vec<_> = (3..34).map(|shift| model.predict(1 << shift).unwrap()).collect();
                    assert!(all.is_sorted_by(|a, b| a.time <= b.time), "{model:?}");
                    let shares = all.iter().map(|it| it.pattern == Pattern::Shares).collect::<Vec<_>>();
                    assert!(shares.is_sorted(), "{model:?}: {all:?}");
                    assert!(nodes == 2 && ranks == 1 || shares[30]);
                }
            }
        }
    }

    #[test]
    fn messages_are_combined_where_they_cost_more_than_a_step() {
        let combines = |model: NodesModel, ranks, bytes| NodesModel { ranks, ..model }.combines(bytes);
        assert!(combines(NodesModel::ETHERNET, 8, 1 << 10) && !combines(NodesModel::ETHERNET, 8, 16 << 20));
        assert!(!combines(NodesModel::ETHERNET, 2, 8) && !combines(NodesModel::ETHERNET, 1, 8));
        assert!(!combines(NodesModel::INFINIBAND, 8, 8));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for model in [
            NodesModel { nodes: 1, ..NodesModel::INFINIBAND },
            NodesModel { ranks: 0, ..NodesModel::INFINIBAND },
            NodesModel { bandwidth: 0.0, ..NodesModel::ETHERNET },
            NodesModel { latency: f64::NAN, ..NodesModel::ETHERNET },
        ] {
            assert!(model.predict(8).unwrap_err().to_string().contains("give two nodes or more"));
        }
    }
}
