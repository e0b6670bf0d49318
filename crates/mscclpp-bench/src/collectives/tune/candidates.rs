//! The candidates that are tried for a size.

use mscclpp_collectives::{Protocol, Selection};

use crate::collectives::What;

/// The values that may be combined.
#[derive(Debug, Clone)]
pub(super) struct Candidates {
    pub(super) protocols: Vec<Protocol>,
    pub(super) blocks: Vec<u32>,
    pub(super) threads: Vec<u32>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The bytes of a block. With fewer, most of its threads would have no work; with more, it would certainly be slow.
const OF_A_BLOCK: std::ops::RangeInclusive<u64> = 64..=4 * MIB;
/// The most bytes of an `all_reduce` in one step: with more than two ranks, two steps are certainly faster for more bytes.
const ONE_STEP: u64 = 4 * MIB;
/// The fewest bytes for which a thread is worthwhile.
const OF_A_THREAD: u64 = 2;

impl Candidates {
    /// The combinations that make sense for a collective with messages of `bytes` bytes between two ranks; others are certainly
    /// slow. There is always one, unless the values to combine are empty.
    pub(super) fn of(&self, what: What, bytes: u64, ranks: u64) -> Vec<Selection> {
        let one_step = self.in_one_step(bytes);
        if what != What::AllReduce || ranks == 2 {
            return one_step;
        }
        // In two steps, each rank reduces one part and gives it to all.
        let two_steps =
            self.in_one_step(bytes / ranks).into_iter().filter(|it| it.protocol != Protocol::Ll16);
        let two_steps = two_steps.map(|it| Selection { two_steps: true, ..it });
        one_step.into_iter().filter(|_| bytes <= ONE_STEP).chain(two_steps).collect()
    }

    fn in_one_step(&self, bytes: u64) -> Vec<Selection> {
        let least = self.threads.iter().min().copied().unwrap_or(0);
        let (fewest, most) = (self.blocks.iter().min(), self.blocks.iter().max());
        let mut all = Vec::new();
        for protocol in self
            .protocols
            .iter()
            .filter(|protocol| self.protocols.len() == 1 || range(**protocol).contains(&bytes))
        {
            for blocks in &self.blocks {
                let share = bytes / u64::from(*blocks);
                let is_last = (share < *OF_A_BLOCK.start() && Some(blocks) == fewest)
                    || (share > *OF_A_BLOCK.end() && Some(blocks) == most);
                if !OF_A_BLOCK.contains(&share) && !is_last {
                    continue;
                }
                let useful = |threads: &u32| *threads == least || u64::from(*threads) * OF_A_THREAD <= share;
                let threads = self.threads.iter().copied().filter(useful);
                let selection =
                    |threads| Selection { protocol: *protocol, two_steps: false, blocks: *blocks, threads };
                all.extend(threads.map(selection));
            }
        }
        all
    }
}

/// The message sizes for which a protocol is worth a trial, if there are several protocols.
fn range(protocol: Protocol) -> std::ops::RangeInclusive<u64> {
    match protocol {
        Protocol::Ll16 => 0..=MIB,
        Protocol::Ll128 => 8 * KIB..=64 * MIB,
        Protocol::Simple => 64 * KIB..=u64::MAX,
        // A protocol that this program does not know is tried for all sizes.
        _ => 0..=u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates() -> Candidates {
        Candidates {
            protocols: vec![Protocol::Ll16, Protocol::Ll128, Protocol::Simple],
            blocks: vec![2, 4, 8, 16, 32, 64, 128],
            threads: vec![256, 512, 1024],
        }
    }

    #[test]
    fn every_size_has_some_and_none_has_many() {
        for shift in 0..36 {
            let all = candidates().of(What::AllGather, 1 << shift, 2);
            assert!((1..=63).contains(&all.len()), "{} for 2^{shift}", all.len());
        }
    }

    #[test]
    fn small_messages_have_few_blocks_and_large_ones_many() {
        let blocks = |bytes| {
            let all = candidates().of(What::AllReduce, bytes, 2);
            (all.iter().map(|it| it.blocks).min(), all.iter().map(|it| it.blocks).max())
        };
        assert_eq!(blocks(8), (Some(2), Some(2)));
        assert_eq!(blocks(KIB), (Some(2), Some(16)));
        assert_eq!(blocks(MIB), (Some(2), Some(128)));
        assert_eq!(blocks(64 * MIB), (Some(16), Some(128)));
        assert_eq!(blocks(1 << 40), (Some(128), Some(128)));
        let protocols = |bytes| {
            candidates().of(What::AllReduce, bytes, 2).iter().map(|it| it.protocol).collect::<Vec<_>>()
        };
        assert!(protocols(KIB).iter().all(|protocol| *protocol == Protocol::Ll16));
        assert!(protocols(1 << 30).iter().all(|protocol| *protocol == Protocol::Simple));
        assert!(
            protocols(256 * KIB).contains(&Protocol::Ll128)
                && protocols(256 * KIB).contains(&Protocol::Simple)
        );
    }

    #[test]
    fn a_single_protocol_is_tried_for_everything() {
        let only = Candidates { protocols: vec![Protocol::Simple], ..candidates() };
        let all = only.of(What::AllGather, KIB, 2);
        assert!(!all.is_empty() && all.iter().all(|it| it.protocol == Protocol::Simple));
    }

    #[test]
    fn more_ranks_reduce_in_two_steps_too() {
        let steps = |what, bytes| {
            let all = candidates().of(what, bytes, 4);
            [false, true].map(|two_steps| all.iter().any(|it| it.two_steps == two_steps))
        };
        assert_eq!(steps(What::AllReduce, MIB), [true, true]);
        assert_eq!(steps(What::AllReduce, 64 * MIB), [false, true]);
        assert_eq!(steps(What::AllReduce, KIB), [true, false]);
        assert_eq!(steps(What::ReduceScatter, MIB), [true, false]);
    }
}
