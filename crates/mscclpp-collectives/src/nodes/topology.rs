//! The nodes, and the ranks on each of them.

use mscclpp::engine::Group;
use sha2::{Digest, Sha256};

use crate::{Error, Result, handle::MAX_RANKS_OF_NODES};

/// The nodes of a group, as all its ranks know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The ranks of each node, ascending. Nodes are in the order of their first ranks.
    nodes: Vec<Vec<usize>>,
    rank: usize,
    /// The node of this rank, and its number there.
    pub(crate) node: usize,
    pub(crate) index: usize,
}

impl Topology {
    /// Learns them from what each rank says of its node. Blocks.
    pub(crate) fn of(group: &Group, node: &str) -> Result<Self> {
        let all = group.all_gather(words_of(node))?;
        Ok(Self::new(&all, group.rank()))
    }

    /// The nodes of ranks that have these keys: equal for ranks of one node.
    pub(crate) fn new<K: PartialEq>(keys: &[K], rank: usize) -> Self {
        let mut nodes: Vec<Vec<usize>> = Vec::new();
        for (r, key) in keys.iter().enumerate() {
            match nodes.iter_mut().find(|ranks| keys[ranks[0]] == *key) {
                Some(ranks) => ranks.push(r),
                None => nodes.push(vec![r]),
            }
        }
        let (node, index) = place(&nodes, rank);
        Self { nodes, rank, node, index }
    }

    /// The same nodes, but each rank of a node is a node of its own if one of them lacks the reach: if its device does
    /// not reach the memory of all others there.
    pub(crate) fn apart(self, lacks: impl Fn(usize) -> bool) -> Self {
        let is_apart = |node: &[usize]| node.iter().any(|rank| lacks(*rank));
        let keys: Vec<_> = (0..self.n_ranks())
            .map(|rank| {
                let node = self.node_of(rank);
                (node, is_apart(&self.nodes[node]).then_some(rank))
            })
            .collect();
        Self::new(&keys, self.rank)
    }

    /// Checks that the kernels have room for as many ranks.
    pub(crate) fn check(&self) -> Result<()> {
        let ranks = self.n_ranks();
        if ranks > MAX_RANKS_OF_NODES {
            return Err(Error::InvalidArgument(format!(
                "{ranks} ranks on {} nodes; {MAX_RANKS_OF_NODES} are the most",
                self.nodes.len()
            )));
        }
        Ok(())
    }

    pub(crate) fn n_ranks(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The ranks of a node.
    pub(crate) fn ranks(&self, node: usize) -> &[usize] {
        &self.nodes[node]
    }

    /// The ranks of this node.
    pub(crate) fn locals(&self) -> &[usize] {
        &self.nodes[self.node]
    }

    pub(crate) fn node_of(&self, rank: usize) -> usize {
        place(&self.nodes, rank).0
    }

    /// A rank's number on its node.
    pub(crate) fn index_of(&self, rank: usize) -> usize {
        place(&self.nodes, rank).1
    }

    /// How many ranks each node has, if all have as many.
    pub(crate) fn even(&self) -> Option<usize> {
        let ranks = self.nodes[0].len();
        self.nodes.iter().all(|node| node.len() == ranks).then_some(ranks)
    }

    /// Whether all nodes have as many ranks, numbered node by node.
    pub(crate) fn is_consecutive(&self) -> bool {
        self.even().is_some() && self.nodes.iter().flatten().is_sorted()
    }

    /// The fewest ranks of a node.
    pub(crate) fn fewest(&self) -> usize {
        self.nodes.iter().map(Vec::len).min().expect("each rank is on a node")
    }

    /// The ranks on other nodes, ascending: to each there is a link, in this order.
    pub(crate) fn remote(&self) -> Vec<usize> {
        let own = self.ranks(self.node_of(self.rank));
        (0..self.n_ranks()).filter(|rank| !own.contains(rank)).collect()
    }

    /// The number of the link with `peer` here, and of that with this rank there.
    ///
    /// # Panics
    /// For a rank of this node, to which there is no link.
    pub(crate) fn link(&self, peer: usize) -> (usize, usize) {
        let number = |of: usize, to: usize| {
            let near = self.ranks(self.node_of(of));
            assert!(
                !near.contains(&to),
                "there is no link between ranks {of} and {to} of the nodes {:?}",
                self.nodes
            );
            to - near.iter().filter(|rank| **rank < to).count()
        };
        (number(self.rank, peer), number(peer, self.rank))
    }

    /// The most links of a rank.
    pub(crate) fn most_links(&self) -> usize {
        self.n_ranks() - self.fewest()
    }
}

/// The node of a rank, and its number there.
///
/// # Panics
/// For a rank that is on none of the nodes.
fn place(nodes: &[Vec<usize>], rank: usize) -> (usize, usize) {
    let found = nodes.iter().enumerate();
    let found =
        found.filter_map(|(node, ranks)| Some((node, ranks.iter().position(|other| *other == rank)?))).next();
    found.unwrap_or_else(|| panic!("rank {rank} is on none of the nodes {nodes:?}"))
}

/// Two words that are the same on ranks that give the same name, and else differ: half of its SHA-256, which is the same in every
/// build.
fn words_of(name: &str) -> [u64; 2] {
    let digest = Sha256::digest(name);
    [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| digest[at + i])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_in_the_order_of_their_first_ranks() {
        let topology = Topology::new(&["b", "a", "b", "c", "a", "b"], 4);
        assert_eq!(topology.nodes, [vec![0, 2, 5], vec![1, 4], vec![3]]);
        assert_eq!((topology.node, topology.index), (1, 1));
        assert_eq!(topology.remote(), [0, 2, 3, 5]);
        assert_eq!((topology.fewest(), topology.even(), topology.most_links()), (1, None, 5));
        assert_eq!((topology.node_of(5), topology.index_of(5)), (0, 2));
        let consecutive = |keys: &[u8]| Topology::new(keys, 0).is_consecutive();
        assert!(consecutive(&[3, 3, 1, 1]) && !consecutive(&[3, 1, 3, 1]) && !consecutive(&[3, 3, 1]));
    }

    #[test]
    fn ranks_of_a_node_whose_devices_do_not_reach_each_other_are_nodes() {
        let topology = Topology::new(&["a", "b", "a", "b", "b"], 3);
        let none = topology.clone().apart(|_| false);
        assert_eq!(none, topology);
        let apart = topology.apart(|rank| rank == 4);
        assert_eq!(apart.nodes, [vec![0, 2], vec![1], vec![3], vec![4]]);
        assert_eq!((apart.node, apart.index), (2, 0));
    }

    #[test]
    fn both_ends_number_a_link_alike() {
        let keys = [7, 8, 7, 9, 8, 7, 7];
        let of = |rank| Topology::new(&keys, rank);
        for a in 0..keys.len() {
            for b in 0..keys.len() {
                if keys[a] == keys[b] {
                    continue;
                }
                let ((here, there), (there_too, here_too)) = (of(a).link(b), of(b).link(a));
                assert_eq!((here, there), (here_too, there_too));
                assert_eq!(of(a).remote()[here], b);
            }
        }
    }

    #[test]
    fn a_rank_that_cannot_be_is_a_mistake_and_not_on_the_first_node() {
        let topology = Topology::new(&["a", "a", "b"], 0);
        let said = |it: &dyn Fn()| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(it)).expect_err("a mistake");
            panic.downcast_ref::<String>().expect("a text").clone()
        };
        let nowhere = "rank 7 is on none of the nodes [[0, 1], [2]]";
        assert_eq!(
            said(&|| {
                topology.node_of(7);
            }),
            nowhere
        );
        assert_eq!(
            said(&|| {
                topology.index_of(7);
            }),
            nowhere
        );
        assert_eq!(
            said(&|| drop(Topology::new(&["a", "a", "b"], 3))),
            "rank 3 is on none of the nodes [[0, 1], [2]]"
        );
        assert_eq!(
            said(&|| {
                topology.link(1);
            }),
            "there is no link between ranks 0 and 1 of the nodes [[0, 1], [2]]"
        );
    }

    /// The first half of the digest that everybody has for these letters, such as sha256sum.
    #[test]
    fn names_of_nodes_are_compared_by_a_hash_that_does_not_change() {
        assert_eq!(words_of("abc"), [0xeacf_018f_bf16_78ba, 0x2322_ae5d_de40_4141]);
        assert_ne!(words_of("abc"), words_of("abd"));
    }
}
