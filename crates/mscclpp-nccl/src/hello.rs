//! The greetings that ranks exchange when they have met, and what ranks conclude from them.

use std::collections::BTreeSet;

use mscclpp::Gpu;
use mscclpp_collectives::{MAX_RANKS, MAX_RANKS_OF_NODES};

use crate::{abi::UniqueId, failure::Failure};

/// The greeting by which a rank introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The identity of the rank's device.
    pub(crate) uuid: [u8; 16],
    /// The hash of the name of the rank's node.
    pub(crate) node: u64,
    /// Whether the rank's device must not reach the memory of others.
    pub(crate) p2p_disabled: bool,
    /// Whether the rank may share its device with another rank.
    pub(crate) same_gpu: bool,
    /// Whether the rank has an NCCL to which it can hand the communicator over.
    pub(crate) fallback: bool,
    /// The fewest and the most blocks that a call may have.
    pub(crate) min_blocks: Option<u32>,
    pub(crate) max_blocks: Option<u32>,
    /// A random number. That of rank 0 is the hash of the communicator.
    pub(crate) hash: u64,
    /// The id under which the other ranks find this one if the job fails.
    pub(crate) spare: Option<UniqueId>,
}

/// The first bytes of a greeting, of which the last is its version.
const MARK: [u8; 4] = *b"MSN\x03";
const SIZE: usize = 4 + 1 + 16 + 4 + 4 + 8 + 128 + 8;

impl Hello {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MARK.to_vec();
        let flags = [self.p2p_disabled, self.same_gpu, self.fallback, self.spare.is_some()];
        bytes.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
        bytes.extend(self.uuid);
        bytes.extend(self.min_blocks.unwrap_or(0).to_le_bytes());
        bytes.extend(self.max_blocks.unwrap_or(0).to_le_bytes());
        bytes.extend(self.hash.to_le_bytes());
        bytes.extend(self.spare.map_or([0; 128], |id| id.0));
        bytes.extend(self.node.to_le_bytes());
        bytes
    }

    /// Reads the greeting of a rank.
    ///
    /// # Errors
    /// [`Code::INVALID_USAGE`](crate::abi::Code::INVALID_USAGE) for bytes that [`Hello::to_bytes`] of this version did not make.
    pub(crate) fn parse(rank: usize, bytes: &[u8]) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage(format!(
                "rank {rank} introduced itself with {} bytes that are no greeting of this version; all ranks load the same \
                 library",
                bytes.len()
            ))
        };
        let bytes: &[u8; SIZE] = bytes.try_into().map_err(|_| wrong())?;
        if bytes[..4] != MARK {
            return Err(wrong());
        }
        let flag = |bit: u8| bytes[4] >> bit & 1 == 1;
        let number = |at: usize| {
            let number = u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
            (number != 0).then_some(number)
        };
        Ok(Self {
            uuid: std::array::from_fn(|i| bytes[5 + i]),
            p2p_disabled: flag(0),
            same_gpu: flag(1),
            fallback: flag(2),
            min_blocks: number(21),
            max_blocks: number(25),
            hash: u64::from_le_bytes(std::array::from_fn(|i| bytes[29 + i])),
            spare: flag(3).then(|| UniqueId(std::array::from_fn(|i| bytes[37 + i]))),
            node: u64::from_le_bytes(std::array::from_fn(|i| bytes[165 + i])),
        })
    }
}

/// The reason why this library does not cover these ranks, or leaves them to the NCCL that is there; `None` if it forms their
/// communicator. All ranks get the same answer.
pub(crate) fn uncovered(all: &[Hello]) -> Option<String> {
    if let Some(rank) = all.iter().position(|hello| hello.p2p_disabled) {
        return Some(format!("rank {rank} has NCCL_P2P_DISABLE=1, and data goes by peer memory alone"));
    }
    let (nodes, ranks) = (nodes(all), all.len());
    if nodes.len() > 1 && all.iter().any(|hello| hello.fallback) {
        return Some("the ranks are on several nodes, and MSCCLPP_NCCL_FALLBACK is set".to_owned());
    }
    let of_node = nodes.iter().map(|node| all.iter().filter(|hello| hello.node == *node).count()).max();
    if let Some(of_node) = of_node.filter(|of_node| *of_node > MAX_RANKS) {
        return Some(format!("there are {of_node} ranks on one node; {MAX_RANKS} are the most"));
    }
    if ranks > MAX_RANKS_OF_NODES {
        let nodes = nodes.len();
        return Some(format!("there are {ranks} ranks on {nodes} nodes; {MAX_RANKS_OF_NODES} are the most"));
    }
    None
}

/// The nodes of the ranks.
fn nodes(all: &[Hello]) -> BTreeSet<u64> {
    all.iter().map(|hello| hello.node).collect()
}

/// The device of a rank. Nodes that are simulated have devices with the same identities.
fn device(hello: &Hello) -> (u64, [u8; 16]) {
    (hello.node, hello.uuid)
}

/// Checks that no two ranks are on one device, unless both allow it.
///
/// # Errors
/// [`Code::INVALID_USAGE`](crate::abi::Code::INVALID_USAGE), which NCCL returns too, if two ranks are.
pub(crate) fn check_devices(all: &[Hello], rank: usize, gpu: &Gpu) -> Result<(), Failure> {
    for (b, second) in all.iter().enumerate() {
        for (a, first) in all[..b].iter().enumerate() {
            if device(first) == device(second) && !(first.same_gpu && second.same_gpu) {
                let own = if rank == a || rank == b { format!(", {gpu}") } else { String::new() };
                return Err(Failure::usage(format!(
                    "ranks {a} and {b} are on the same device{own}: give each rank its own (cudaSetDevice before the \
                     communicator is made), or set MSCCLPP_NCCL_SAME_GPU=1"
                )));
            }
        }
    }
    Ok(())
}

/// The largest number of ranks that share one device. The calls of them all need room on it at the same time.
pub(crate) fn sharing(all: &[Hello]) -> u32 {
    let of = |hello| all.iter().filter(|other| device(other) == device(hello)).count();
    let most = all.iter().map(of).max();
    most.and_then(|most| u32::try_from(most).ok()).unwrap_or(1)
}

/// The fewest and the most blocks that a call may have on all ranks. If these contradict each other, the most counts.
pub(crate) fn blocks(all: &[Hello]) -> (Option<u32>, Option<u32>) {
    let most = all.iter().filter_map(|hello| hello.max_blocks).min();
    let least = all.iter().filter_map(|hello| hello.min_blocks).max();
    (least.map(|least| most.map_or(least, |most| least.min(most))), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(device: u8) -> Hello {
        Hello {
            uuid: [device; 16],
            node: 6 << 60,
            p2p_disabled: false,
            same_gpu: false,
            fallback: false,
            min_blocks: None,
            max_blocks: Some(7),
            hash: 5 << 60,
            spare: Some(UniqueId([9; 128])),
        }
    }

    #[test]
    fn a_greeting_arrives_as_it_was_sent() {
        for hello in [hello(3), Hello { spare: None, same_gpu: true, min_blocks: Some(1), ..hello(4) }] {
            let bytes = hello.to_bytes();
            assert_eq!(Hello::parse(1, &bytes).unwrap(), hello);
            for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], &[]] {
                assert!(Hello::parse(1, wrong).unwrap_err().text.contains("rank 1"));
            }
        }
    }

    #[test]
    fn what_is_not_covered_has_a_reason() {
        let two = [hello(0), hello(1)];
        assert_eq!(uncovered(&two), None);
        assert_eq!(uncovered(&two.clone().map(|rank| Hello { fallback: true, ..rank })), None);
        let apart = |fallback| [hello(0), Hello { node: 1, fallback, ..hello(1) }];
        assert_eq!(uncovered(&apart(false)), None);
        assert!(uncovered(&apart(true)).unwrap().contains("several nodes"));
        assert!(uncovered(&[hello(0), Hello { p2p_disabled: true, ..hello(1) }]).unwrap().contains("rank 1"));
        let of_nodes = |counts: &[usize]| -> Vec<Hello> {
            let nodes = counts.iter().enumerate();
            nodes.flat_map(|(node, n)| vec![Hello { node: node as u64, ..hello(0) }; *n]).collect()
        };
        assert_eq!(uncovered(&of_nodes(&[16, 16, 16, 16])), None);
        assert!(uncovered(&of_nodes(&[17])).unwrap().contains("17 ranks on one node; 16 "));
        assert!(uncovered(&of_nodes(&[1, 17])).unwrap().contains("17 ranks on one node; 16 "));
        assert!(uncovered(&of_nodes(&[16, 16, 16, 16, 1])).unwrap().contains("65 ranks on 5 nodes; 64 "));
    }

    #[test]
    fn ranks_of_one_device_are_counted() {
        assert_eq!(sharing(&[hello(0), hello(1), hello(0), hello(2)]), 2);
        assert_eq!(sharing(&[hello(0), Hello { node: 1, ..hello(0) }]), 1);
    }

    #[test]
    fn blocks_are_right_for_all() {
        let of = |min_blocks, max_blocks| Hello { min_blocks, max_blocks, ..hello(0) };
        assert_eq!(blocks(&[of(None, Some(8)), of(Some(2), Some(4))]), (Some(2), Some(4)));
        assert_eq!(blocks(&[of(Some(16), None), of(None, Some(4))]), (Some(4), Some(4)));
        assert_eq!(blocks(&[of(None, None)]), (None, None));
    }
}
