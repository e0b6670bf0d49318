//! Which ranks are on which host, and which of them stand for a host.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Error, Result, group::Group, handle::MAX_RANKS_OF_HOSTS};

/// The hosts of a group, as all its ranks know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The ranks of each host, ascending. Hosts are in the order of their first ranks.
    hosts: Vec<Vec<usize>>,
    rank: usize,
    /// The host of this rank, and its number there.
    pub(crate) host: usize,
    pub(crate) index: usize,
}

impl Topology {
    /// Learns them from what each rank says of its host. Blocks.
    pub(crate) fn of(group: &Group, host: &str) -> Result<Self> {
        // Two halves of 64 bits: names are of any length, and words are what ranks tell each other.
        let half = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            (salt, host).hash(&mut hasher);
            hasher.finish()
        };
        let all = group.all_gather([half(0), half(1)])?;
        Ok(Self::new(&all, group.rank))
    }

    /// Of keys that are equal for ranks of one host.
    pub(crate) fn new<K: PartialEq>(keys: &[K], rank: usize) -> Self {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for (r, key) in keys.iter().enumerate() {
            match hosts.iter_mut().find(|ranks| keys[ranks[0]] == *key) {
                Some(ranks) => ranks.push(r),
                None => hosts.push(vec![r]),
            }
        }
        let place = |r: usize| {
            let found = hosts.iter().enumerate();
            found.filter_map(|(host, ranks)| Some((host, ranks.iter().position(|other| *other == r)?))).next()
        };
        let (host, index) = place(rank).unwrap_or_default();
        Self { hosts, rank, host, index }
    }

    /// That the kernels have room for as many ranks.
    pub(crate) fn check(&self) -> Result<()> {
        let ranks = self.n_ranks();
        if ranks > MAX_RANKS_OF_HOSTS {
            return Err(Error::InvalidArgument(format!(
                "{ranks} ranks on {} hosts; {MAX_RANKS_OF_HOSTS} are the most",
                self.hosts.len()
            )));
        }
        Ok(())
    }

    pub(crate) fn n_ranks(&self) -> usize {
        self.hosts.iter().map(Vec::len).sum()
    }

    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks of a host.
    pub(crate) fn ranks(&self, host: usize) -> &[usize] {
        &self.hosts[host]
    }

    /// The ranks of this host.
    pub(crate) fn locals(&self) -> &[usize] {
        &self.hosts[self.host]
    }

    pub(crate) fn host_of(&self, rank: usize) -> usize {
        self.hosts.iter().position(|ranks| ranks.contains(&rank)).unwrap_or_default()
    }

    /// A rank's number on its host.
    pub(crate) fn index_of(&self, rank: usize) -> usize {
        let ranks = &self.hosts[self.host_of(rank)];
        ranks.iter().position(|other| *other == rank).unwrap_or_default()
    }

    /// How many ranks each host has, if all have as many.
    pub(crate) fn even(&self) -> Option<usize> {
        let ranks = self.hosts[0].len();
        self.hosts.iter().all(|host| host.len() == ranks).then_some(ranks)
    }

    /// Whether all hosts have as many ranks, numbered host by host.
    pub(crate) fn is_consecutive(&self) -> bool {
        self.even().is_some() && self.hosts.iter().flatten().is_sorted()
    }

    /// The fewest ranks of a host.
    pub(crate) fn fewest(&self) -> usize {
        self.hosts.iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The ranks on other hosts, ascending: to each there is a link, in this order.
    pub(crate) fn remote(&self) -> Vec<usize> {
        self.remote_of(self.rank)
    }

    fn remote_of(&self, rank: usize) -> Vec<usize> {
        let host = self.host_of(rank);
        let mut remote: Vec<usize> =
            self.hosts.iter().enumerate().filter(|(h, _)| *h != host).flat_map(|(_, r)| r.clone()).collect();
        remote.sort_unstable();
        remote
    }

    /// The number of the link with `peer` here, and of that with this rank there.
    pub(crate) fn link(&self, peer: usize) -> Option<(usize, usize)> {
        let number = |of: usize, to: usize| self.remote_of(of).iter().position(|rank| *rank == to);
        Some((number(self.rank, peer)?, number(peer, self.rank)?))
    }

    /// The most links of a rank.
    pub(crate) fn most_links(&self) -> usize {
        self.n_ranks() - self.fewest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_in_the_order_of_their_first_ranks() {
        let topology = Topology::new(&["b", "a", "b", "c", "a", "b"], 4);
        assert_eq!(topology.hosts, [vec![0, 2, 5], vec![1, 4], vec![3]]);
        assert_eq!((topology.host, topology.index), (1, 1));
        assert_eq!(topology.remote(), [0, 2, 3, 5]);
        assert_eq!((topology.fewest(), topology.even(), topology.most_links()), (1, None, 5));
        assert_eq!((topology.host_of(5), topology.index_of(5)), (0, 2));
        let consecutive = |keys: &[u8]| Topology::new(keys, 0).is_consecutive();
        assert!(consecutive(&[3, 3, 1, 1]) && !consecutive(&[3, 1, 3, 1]) && !consecutive(&[3, 3, 1]));
    }

    #[test]
    fn both_ends_number_a_link_alike() {
        let keys = [7, 8, 7, 9, 8, 7, 7];
        let of = |rank| Topology::new(&keys, rank);
        for a in 0..keys.len() {
            for b in 0..keys.len() {
                match (of(a).link(b), of(b).link(a)) {
                    (Some((here, there)), Some((there_too, here_too))) => {
                        assert!(keys[a] != keys[b]);
                        assert_eq!((here, there), (here_too, there_too));
                        assert_eq!(of(a).remote()[here], b);
                    }
                    (None, None) => assert_eq!(keys[a], keys[b]),
                    other => panic!("{a} {b}: {other:?}"),
                }
            }
        }
    }
}
