//! A collective, as it is asked for by addresses.

use mscclpp::DevicePtr;

use crate::{DataType, handle::BY_MEMORY};

/// How the numbers of all ranks become one. Sums, and everything else, are made in the order of the ranks, 0 first:
/// their bits depend on nothing but the numbers. With ranks on several nodes, each node's are made so, in the order of its
/// ranks, and rounded to the type; then those of the nodes, in the order of their first ranks. So bits depend on which ranks are
/// on which node, too, and on nothing else.
///
/// Floats of 8 and 16 bits are combined as `f32`, and the result is rounded once (with several nodes once on each, and once in
/// the end); `f32` and `f64` are combined in their own type. Sums and products of whole numbers wrap.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest. A NaN wins.
    Max,
    /// The smallest. A NaN wins.
    Min,
    /// The average, as NCCL makes it. Whole numbers are added in their type, so the sum wraps, and then divided by the number of
    /// ranks, towards zero. `f32` and `f64` are multiplied by 1/N first, for N ranks, and then added. The sum of floats of 8 and
    /// 16 bits is divided as `f32`, before it is rounded.
    Avg,
    /// The sum, of numbers that were first multiplied by this rank's factor and rounded to their type. Ranks may have
    /// different factors. For floats of up to 32 bits the factor is rounded to an `f32`; for whole numbers its fraction
    /// is cut off.
    PreMulSum(f64),
    /// The sum of [`ReduceOp::PreMulSum`], with a factor in device memory: a number of the type, at any address, which
    /// the call reads as it runs. For [`Collectives::enqueue`](crate::Collectives::enqueue) alone: other calls refuse
    /// it, as they could not be safe.
    PreMulSumAt(DevicePtr),
}

impl ReduceOp {
    /// `ncclRedOp_t`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Sum | Self::PreMulSum(_) | Self::PreMulSumAt(_) => 0,
            Self::Prod => 1,
            Self::Max => 2,
            Self::Min => 3,
            Self::Avg => 4,
        }
    }

    /// Whether numbers are multiplied first.
    pub(crate) fn scales(self) -> bool {
        matches!(self, Self::PreMulSum(_) | Self::PreMulSumAt(_))
    }

    /// The operation for ranks on several nodes, `ranks` in all. The factor of an average of floats is applied before a
    /// node adds its own numbers.
    pub(crate) fn of_nodes(self, data_type: DataType, ranks: usize) -> Self {
        match (self, data_type) {
            (Self::Avg, DataType::F32 | DataType::F64) => Self::PreMulSum(1.0 / ranks as f64),
            _ => self,
        }
    }

    /// The factor as the kernel takes it: `scale` and `scaled` of a `CollectiveCall`.
    pub(crate) fn scale(self, data_type: DataType) -> (u64, u32) {
        let factor = match self {
            Self::PreMulSum(factor) => factor,
            Self::PreMulSumAt(at) => return (at.0, BY_MEMORY),
            _ => return (0, 0),
        };
        #[allow(
            clippy::cast_possible_truncation,
            reason = "what the type of the numbers can hold is documented"
        )]
        let bits = match data_type {
            DataType::F64 => factor.to_bits(),
            _ if data_type.is_float() => u64::from((factor as f32).to_bits()),
            DataType::U64 | DataType::U32 | DataType::U16 | DataType::U8 if factor >= 0.0 => factor as u64,
            _ => (factor as i64).cast_unsigned(),
        };
        (bits, 1)
    }
}

/// A collective, with what only it needs. Ranks are numbered as in their [`Collectives`](crate::Collectives).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Kind<'a> {
    /// Every rank gets `count` numbers, of all ranks reduced.
    AllReduce(ReduceOp),
    /// Every rank gives `count` numbers and gets those of all, in the order of the ranks.
    AllGather,
    /// [`Kind::AllGather`] with a count for each rank. `count` is not used.
    AllGatherV(&'a [u64]),
    /// Every rank gives `count` numbers for each rank, and gets those for it, reduced.
    ReduceScatter(ReduceOp),
    /// Every rank gives `count` numbers to each rank, and gets as many from each.
    AllToAll,
    /// [`Kind::AllToAll`] with counts: how many numbers for each rank, and how many from each. The numbers lie
    /// behind each other in the order of the ranks. `count` is not used.
    AllToAllV {
        /// How many for each rank.
        send: &'a [u64],
        /// How many from each rank, which are as many as it sends.
        recv: &'a [u64],
    },
    /// Every rank gets the `count` numbers of rank `root`. Only there is `send` used.
    Broadcast {
        /// The rank whose numbers these are.
        root: usize,
    },
    /// Rank `root` gets `count` numbers, of all ranks reduced. Only there is `recv` used.
    Reduce {
        /// Who gets them.
        root: usize,
        /// How.
        op: ReduceOp,
    },
    /// Rank `root` gets the `count` numbers of every rank, in the order of the ranks. Only there is `recv` used.
    Gather {
        /// Who gets them.
        root: usize,
    },
    /// Every rank gets `count` numbers of rank `root`, which has them in the order of the ranks. Only there is `send`
    /// used.
    Scatter {
        /// The rank whose numbers these are.
        root: usize,
    },
    /// No rank goes on before all have come here.
    Barrier,
    /// Rank `peer` gets `count` numbers of this rank; only these two ranks call. Only `send` is used.
    Send {
        /// The rank that gets them.
        peer: usize,
    },
    /// Gets `count` numbers of rank `peer`; only these two ranks call. Only `recv` is used.
    Recv {
        /// The rank that gives them.
        peer: usize,
    },
}

impl Kind<'_> {
    /// The other rank of a message, and whether this rank receives it.
    pub(crate) fn peer(&self) -> Option<(usize, bool)> {
        match *self {
            Self::Send { peer } => Some((peer, false)),
            Self::Recv { peer } => Some((peer, true)),
            _ => None,
        }
    }

    /// How numbers are reduced, if they are.
    pub(crate) fn op(&self) -> Option<ReduceOp> {
        match *self {
            Self::AllReduce(op) | Self::ReduceScatter(op) | Self::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }
}

/// A collective by addresses, for [`Collectives::enqueue`](crate::Collectives::enqueue).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request<'a> {
    /// The collective.
    pub kind: Kind<'a>,
    /// This rank's numbers, on its device.
    pub send: DevicePtr,
    /// Where the result goes, on its device. In place is: at `send` for kinds that give every rank as much as they
    /// take of it ([`Kind::AllReduce`], [`Kind::AllToAll`], [`Kind::Broadcast`], [`Kind::Reduce`]). For
    /// [`Kind::AllGather`] and [`Kind::Gather`], `send` is this rank's place in `recv`; for [`Kind::ReduceScatter`]
    /// and [`Kind::Scatter`], `recv` is this rank's place in `send`.
    pub recv: DevicePtr,
    /// The count of numbers. The kind says whether it is that of one rank or of all.
    pub count: u64,
    /// The type of the numbers.
    pub data_type: DataType,
}
