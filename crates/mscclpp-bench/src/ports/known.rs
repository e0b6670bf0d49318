//! The known times of port channels between two GPUs of one node, in microseconds per round. `docs/performance.md` names the
//! GPUs.

use super::Carrier;
use crate::report::Known;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The bytes, the baseline and the goal of a put.
type Put = (u64, Option<f64>, f64);

/// The puts with one launch per round. The first two baselines are medians of several runs.
const PUTS: [Put; 3] = [
    (KIB, Some(20.05), 8.0),
    (MIB, Some(24.2), 18.0),
    // This goal is given as a speed.
    (128 * MIB, Some(367.0), (128 * MIB) as f64 / 374.0 / 1e3),
];

const PUTS_IN_KERNEL: [Put; 10] = [
    (KIB, Some(16.8), 5.5),
    (4 * KIB, None, 5.0),
    (16 * KIB, None, 5.5),
    (64 * KIB, Some(16.8), 7.0),
    (256 * KIB, None, 12.0),
    (MIB, Some(25.0), 16.0),
    (4 * MIB, Some(29.6), 24.0),
    (16 * MIB, Some(63.7), 57.0),
    (64 * MIB, Some(195.0), 186.0),
    (128 * MIB, Some(367.0), 357.0),
];

/// The known times of puts over CUDA IPC.
pub(super) fn put(bytes: u64, in_kernel: bool) -> Known {
    let known: &[Put] = if in_kernel { &PUTS_IN_KERNEL } else { &PUTS };
    match known.iter().find(|known| known.0 == bytes) {
        Some((_, baseline, goal)) => (*baseline, Some(*goal)),
        None => (None, None),
    }
}

/// The known times of one element, back and forth; the medians of several runs.
pub(super) fn ping_pong(carrier: Carrier) -> Known {
    match carrier {
        Carrier::CudaIpc => (Some(20.35), Some(7.0)),
        Carrier::Ethernet => (Some(171.5), Some(60.0)),
    }
}

/// The known times of one element in packets, back and forth.
pub(super) const PACKET_PING_PONG: Known = (Some(7.85), Some(4.5));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_for_their_size_and_kind_of_rounds() {
        assert_eq!(put(KIB, false), (Some(20.05), Some(8.0)));
        assert_eq!(put(KIB, true), (Some(16.8), Some(5.5)));
        assert_eq!(put(64 * KIB, false), (None, None));
        let (_, goal) = put(128 * MIB, false);
        assert!(goal.is_some_and(|goal| (goal - 358.9).abs() < 0.1), "{goal:?}");
    }
}
