//! The collectives that are measured, with sizes as nccl-tests count them.

use clap::ValueEnum;
use mscclpp_collectives::{Kind, ReduceOp};

use super::Numbers;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
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

    /// The bytes that one direction of a rank's link carries for each byte of the size.
    pub(crate) fn bus(self, ranks: usize) -> f64 {
        let once = (ranks as f64 - 1.0) / ranks as f64;
        if self == Self::AllReduce { 2.0 * once } else { once }
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
