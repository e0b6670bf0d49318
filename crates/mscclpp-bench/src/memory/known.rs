//! The known times of memory rows between two GPUs of one node, in microseconds for a round. `docs/performance.md` names the
//! GPUs.

use super::{Move, Packets, Shape};

/// The known time of a row with 32 blocks of 1024 threads.
struct Known {
    what: Move,
    bytes: u64,
    baseline: Option<f64>,
    goal: f64,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const LL16: Move = Move::PutPackets(Packets::Ll16);
const LL128: Move = Move::PutPackets(Packets::Ll128);

/// The size and the goal of a put by bulk copies, with 8 blocks of one warp.
const BULK: (u64, f64) = (128 * MIB, at(128 * MIB, 345.0));

const KNOWN: [Known; 10] = [
    Known { what: Move::Put, bytes: KIB, baseline: Some(6.67), goal: 5.0 },
    Known { what: Move::Put, bytes: MIB, baseline: Some(9.37), goal: 7.5 },
    Known { what: Move::Put, bytes: 128 * MIB, baseline: Some(389.0), goal: at(128 * MIB, 347.0) },
    Known { what: Move::Get, bytes: KIB, baseline: Some(4.64), goal: 3.8 },
    Known { what: Move::Get, bytes: MIB, baseline: Some(7.74), goal: 6.5 },
    Known { what: Move::Get, bytes: 128 * MIB, baseline: Some(416.0), goal: at(128 * MIB, 331.0) },
    Known { what: LL16, bytes: KIB, baseline: Some(4.08), goal: 3.5 },
    Known { what: LL16, bytes: MIB, baseline: Some(10.45), goal: 8.0 },
    Known { what: LL16, bytes: 128 * MIB, baseline: Some(1006.0), goal: at(128 * MIB, 165.0) },
    Known { what: LL128, bytes: 128 * MIB, baseline: None, goal: at(128 * MIB, 300.0) },
];

/// The microseconds for `bytes` bytes at a given speed.
const fn at(bytes: u64, gigabytes_a_second: f64) -> f64 {
    bytes as f64 / gigabytes_a_second / 1e3
}

/// The baseline and the goal. The baselines are of 32 blocks of 1024 threads; another shape has none, and the goal of the
/// largest put with more blocks is that for any number of blocks.
pub(super) fn known(what: Move, bytes: u64, shape: Shape) -> crate::report::Known {
    let Shape { blocks, threads, is_bulk, .. } = shape;
    let known = KNOWN.iter().find(|known| known.what == what && known.bytes == bytes);
    match known {
        _ if is_bulk && (what, bytes, blocks) == (Move::Put, BULK.0, 8) => (None, Some(BULK.1)),
        _ if is_bulk => (None, None),
        Some(known) if (blocks, threads) == (32, 1024) => (known.baseline, Some(known.goal)),
        Some(_) if what == Move::Put && bytes == 128 * MIB && blocks > 32 => (None, Some(at(bytes, 358.0))),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_for_their_size_and_shape() {
        assert_eq!(known(Move::Put, KIB, Shape::of(32, 1024)), (Some(6.67), Some(5.0)));
        let (baseline, goal) = known(Move::Put, 128 * MIB, Shape::of(32, 1024));
        assert!(baseline == Some(389.0) && goal.is_some_and(|goal| (goal - 386.8).abs() < 0.1), "{goal:?}");
        let (baseline, goal) = known(Move::Put, 128 * MIB, Shape::of(132, 1024));
        assert!(baseline.is_none() && goal.is_some_and(|goal| (goal - 374.9).abs() < 0.1), "{goal:?}");
        for (what, bytes, blocks, threads) in [
            (Move::Put, 2 * KIB, 32, 1024),
            (Move::Get, KIB, 16, 1024),
            (Move::Get, KIB, 32, 512),
            (LL128, KIB, 32, 1024),
        ] {
            assert_eq!(known(what, bytes, Shape::of(blocks, threads)), (None, None));
        }
    }
}
