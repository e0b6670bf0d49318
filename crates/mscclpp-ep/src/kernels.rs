//! The kernels of calls.

use mscclpp::{Kernel, Module};

use crate::Result;

/// The kernels of calls, of experts whose numbers have one type, and whose rows travel in one way.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) dispatch: Kernel,
    /// Those of calls that have a kernel of their own.
    pub(crate) special: Vec<(Special, Kernel)>,
    pub(crate) combine: Kernel,
    /// The threads of a block.
    pub(crate) threads: u32,
}

impl Kernels {
    /// The kernels of rows that are stored, or that travel as packets. The names of the combines begin with `combine`.
    pub(crate) fn of(
        dispatches: &Module,
        combines: &Module,
        combine: &str,
        by_packets: bool,
        threads: u32,
    ) -> Result<Self> {
        let way = if by_packets { "_by_packets" } else { "" };
        // The name that a C++ compiler gives `mscclpp::ep::NAME`.
        let kernel = |module: &Module, name: &str| {
            module.kernel(&format!("_ZN7mscclpp2ep{}{name}{way}E", name.len() + way.len()))
        };
        let mut special = Vec::new();
        for (of, name) in Special::dispatches(by_packets) {
            special.push((*of, kernel(dispatches, name)?));
        }
        for (of, name) in [(Special::Rows, "rows"), (Special::Sums, "sums"), (Special::Exact, "exact")] {
            special.push((of, kernel(combines, &format!("{combine}_{name}"))?));
        }
        Ok(Self {
            dispatch: kernel(dispatches, "dispatch")?,
            special,
            combine: kernel(combines, combine)?,
            threads,
        })
    }
}

/// A call that may have a kernel of its own, with less code: the kernels for all calls know nothing of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// A whole dispatch of many tokens whose rows are stored as they are, in a layout that copies.
    ByRow,
    /// The same, and an `EpGivenDispatch` of [`Layout::Token`](crate::Layout::Token).
    TokenByRow,
    /// An `EpQuantisedDispatch` of [`Layout::Rank`](crate::Layout::Rank).
    Rank,
    /// The same of many tokens between two ranks, whose warps share them: X7.
    RankShared,
    /// An `EpQuantisedDispatch` of [`Layout::Expert`](crate::Layout::Expert).
    Expert,
    /// An `EpGivenDispatch` of [`Layout::Token`](crate::Layout::Token), by packets.
    Token,
    /// An `EpUsualCombine` of one row for a token.
    Rows,
    /// The same of sums of rows.
    Sums,
    /// The same of the rows of all choices.
    Exact,
}

impl Special {
    /// The dispatches of rows that are stored, or that travel as packets, and the names of their kernels.
    fn dispatches(by_packets: bool) -> &'static [(Self, &'static str)] {
        if by_packets {
            &[
                (Self::Rank, "dispatch_rank"),
                (Self::Expert, "dispatch_expert"),
                (Self::Token, "dispatch_token"),
            ]
        } else {
            &[
                (Self::Rank, "dispatch_rank"),
                (Self::RankShared, "dispatch_rank_shared"),
                (Self::Expert, "dispatch_expert"),
                (Self::ByRow, "dispatch_by_row"),
                (Self::TokenByRow, "dispatch_token_by_row"),
            ]
        }
    }
}
