//! The collectives that are measured, with sizes as nccl-tests count them.

use mscclpp_collectives::{Kind, ReduceOp};

use super::Numbers;
use crate::report::{Bandwidth, Known};

/// The collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    pub(crate) fn kind(self) -> Kind<'static> {
        match self {
            Self::AllReduce => Kind::AllReduce(ReduceOp::Sum),
            Self::AllGather => Kind::AllGather,
            Self::ReduceScatter => Kind::ReduceScatter(ReduceOp::Sum),
            Self::AllToAll => Kind::AllToAll,
        }
    }

    /// The bytes that a rank gives to a collective of this size.
    pub(crate) fn given(self, bytes: u64, ranks: u64) -> u64 {
        if self == Self::AllGather { bytes / ranks } else { bytes }
    }

    /// The bytes that a rank gets from a collective of this size.
    pub(crate) fn got(self, bytes: u64, ranks: u64) -> u64 {
        if self == Self::ReduceScatter { bytes / ranks } else { bytes }
    }

    /// The bytes that the count of a call stands for.
    pub(crate) fn counted(self, bytes: u64, ranks: u64) -> u64 {
        if self == Self::AllReduce { bytes } else { bytes / ranks }
    }

    /// The bandwidths of a call of `bytes` bytes that takes `us` microseconds.
    pub(crate) fn bandwidth(self, bytes: u64, us: f64, ranks: u64) -> Bandwidth {
        let Bandwidth { algorithm, .. } = Bandwidth::of(bytes, us);
        let once = (ranks as f64 - 1.0) / ranks as f64;
        let bus = if self == Self::AllReduce { 2.0 * once } else { once };
        Bandwidth { algorithm, bus: algorithm * bus }
    }

    /// The result of `rank` if the ranks have given these bytes.
    pub(crate) fn result(self, given: &[Vec<u8>], rank: usize, numbers: Numbers) -> Vec<u8> {
        let part = |of: &Vec<u8>| {
            let len = of.len() / given.len();
            len * rank..len * (rank + 1)
        };
        let parts: Vec<&[u8]> = given.iter().map(|of| &of[part(of)]).collect();
        match self {
            Self::AllReduce => numbers.sum(&given.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            Self::AllGather => given.concat(),
            Self::ReduceScatter => numbers.sum(&parts),
            Self::AllToAll => parts.concat(),
        }
    }

    /// The known times of f16 out of place: the best of NCCL 2.28.9 and 2.32.3, each plain and with registered windows, and of
    /// the reference; and the goal.
    #[allow(clippy::approx_constant, reason = "3.14 was measured")]
    pub(crate) fn known(self, bytes: u64) -> Known {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        const SIZES: [u64; 9] = [KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, GIB];
        let (best, goal) = match self {
            Self::AllReduce => (
                [2.62, 3.26, 4.53, 6.07, 13.3, 20.9, 60.9, 222.0, 3183.0],
                [2.2, 2.5, 2.9, 3.6, 6.4, 17.0, 57.5, 204.0, 3040.0],
            ),
            Self::AllGather => (
                [3.14, 3.60, 3.96, 6.65, 7.57, 13.2, 34.0, 111.0, 1664.0],
                [2.2, 2.4, 2.65, 3.2, 4.6, 10.0, 32.5, 113.0, 1690.0],
            ),
            Self::ReduceScatter => (
                [3.42, 4.01, 4.32, 6.74, 9.17, 19.9, 50.7, 163.0, 2005.0],
                [2.2, 2.4, 2.65, 3.2, 4.7, 9.8, 31.5, 107.0, 1540.0],
            ),
            Self::AllToAll => (
                [6.05, 7.39, 7.79, 8.09, 13.4, 18.2, 35.5, 106.0, 1477.0],
                [2.2, 2.4, 2.65, 3.2, 4.6, 10.0, 33.5, 113.0, 1620.0],
            ),
        };
        let at = SIZES.iter().position(|size| *size == bytes);
        (at.map(|at| best[at]), at.map(|at| goal[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_the_collective() {
        let given = [vec![1, 2, 3, 4, 5, 6, 7, 8], vec![11, 12, 13, 14, 15, 16, 17, 18]];
        let result = |what: What, rank| what.result(&given, rank, Numbers::F32);
        assert_eq!(result(What::AllGather, 0), given.concat());
        assert_eq!(result(What::AllToAll, 0), [1, 2, 3, 4, 11, 12, 13, 14]);
        assert_eq!(result(What::AllToAll, 1), [5, 6, 7, 8, 15, 16, 17, 18]);
        let sums = result(What::AllReduce, 1);
        assert_eq!(sums, Numbers::F32.sum(&[&given[0], &given[1]]));
        assert_eq!([result(What::ReduceScatter, 0), result(What::ReduceScatter, 1)].concat(), sums);
        for what in [What::AllReduce, What::AllGather, What::ReduceScatter, What::AllToAll] {
            assert_eq!(what.result(&given[..1], 0, Numbers::F32), given[0], "{what:?} of one rank");
            let sent = what.given(16, 2) as usize;
            let given = [vec![0; sent], vec![0; sent]];
            assert_eq!(what.result(&given, 0, Numbers::F16).len() as u64, what.got(16, 2), "{what:?}");
        }
    }
}
