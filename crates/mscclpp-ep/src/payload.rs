//! The rows that travel for a token.

use crate::{Error, Result, handle::PARTS};
use mscclpp::KernelSource;

/// The type of the numbers of tokens, and of the rows that [`combine`](crate::Experts::combine) sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum NumberType {
    /// The upper half of an `F32`.
    #[default]
    Bf16,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl NumberType {
    /// The size of one number, in bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// `ReduceType` of the headers.
    pub(crate) fn reduce_type(self) -> u32 {
        match self {
            Self::F16 => 6,
            Self::F32 => 7,
            Self::Bf16 => 9,
        }
    }

    /// The combines of such numbers, and how the names of these kernels begin.
    pub(crate) fn kernels(self) -> (KernelSource<'static>, &'static str) {
        match self {
            Self::Bf16 => (mscclpp_kernels::EXPERTS_BF16, "combine_bf16"),
            Self::F16 => (mscclpp_kernels::EXPERTS_F16, "combine_f16"),
            Self::F32 => (mscclpp_kernels::EXPERTS_F32, "combine_f32"),
        }
    }
}

/// How tokens of [`NumberType::Bf16`] or [`NumberType::F16`] become numbers of one byte on their way. A receiver gets two
/// tensors: numbers of type e4m3, and the scales. 128 numbers, or what is left at the end of a row, have one scale: the
/// largest absolute value, at least 1e-4, divided by 448. A NaN becomes a NaN, and does not count for the scale. With an
/// infinity among them, the scale is infinite, what is infinite becomes a NaN, and all else 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantisation {
    /// A scale is a float.
    E4m3,
    /// A scale is the next power of two: one byte, the exponent plus 127, or 255 if it is infinite. A row has a multiple of 4 of
    /// them; those behind the last are zero.
    E4m3Ue8m0,
}

/// The rows that travel for each token, for [`with_payload`](crate::Experts::with_payload). If nothing else is said, they are H
/// numbers of the set-up's type.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    pub(crate) hidden: u64,
    pub(crate) number_type: NumberType,
    pub(crate) quantisation: Option<Quantisation>,
    /// The bytes of a token's row, if its numbers are of no [`NumberType`].
    pub(crate) row_bytes: Option<u64>,
    /// The bytes of the other tensors' rows.
    pub(crate) others: Vec<u64>,
}

impl Payload {
    /// H numbers, as they are.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`ExpertsBuilder::quantise`](crate::ExpertsBuilder::quantise).
    #[must_use]
    pub fn quantise(mut self, quantisation: Quantisation) -> Self {
        self.quantisation = Some(quantisation);
        self
    }

    /// See [`ExpertsBuilder::row_bytes`](crate::ExpertsBuilder::row_bytes).
    #[must_use]
    pub fn row_bytes(mut self, bytes: usize) -> Self {
        self.row_bytes = Some(bytes as u64);
        self
    }

    /// See [`ExpertsBuilder::also`](crate::ExpertsBuilder::also).
    #[must_use]
    pub fn also(mut self, row_bytes: usize) -> Self {
        self.others.push(row_bytes as u64);
        self
    }

    /// The sizes of the tensors' rows as a program gives them.
    pub(crate) fn given(&self) -> Vec<u64> {
        let first = self.row_bytes.unwrap_or(self.hidden * self.number_type.size());
        [first].into_iter().chain(self.others.iter().copied()).collect()
    }

    /// The sizes of the tensors' rows as they travel and are received.
    pub(crate) fn travelling(&self) -> Vec<u64> {
        let groups = self.hidden.div_ceil(128);
        let first = match self.quantisation {
            None => return self.given(),
            Some(Quantisation::E4m3) => [self.hidden, 4 * groups],
            Some(Quantisation::E4m3Ue8m0) => [self.hidden, groups.next_multiple_of(4)],
        };
        first.into_iter().chain(self.others.iter().copied()).collect()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::InvalidArgument(why));
        let Self { hidden, number_type, .. } = self;
        if *hidden == 0 || !hidden.is_multiple_of(4) || *hidden > 1 << 20 {
            return invalid(format!("hidden({hidden}); give a multiple of 4, up to {}", 1 << 20));
        }
        if self.quantisation.is_some() && (*number_type == NumberType::F32 || self.row_bytes.is_some()) {
            return invalid("quantise() is for tokens of type Bf16 or F16".to_owned());
        }
        let travelling = self.travelling();
        if travelling.len() > PARTS {
            return invalid(format!(
                "{} tensors travel for a token, and {PARTS} are the most",
                travelling.len()
            ));
        }
        match self.given().iter().find(|bytes| **bytes == 0 || !bytes.is_multiple_of(4) || **bytes > 1 << 22)
        {
            Some(bytes) => {
                invalid(format!("a row of {bytes} bytes; give a multiple of 4, up to {}", 1 << 22))
            }
            None => Ok(()),
        }
    }
}
