//! A dispatch and a combine, as a program asks for them.

use crate::{Memory, Routed};

/// The type of the experts' numbers in `topk_ids`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IdType {
    /// Signed, 4 bytes.
    #[default]
    I32,
    /// Signed, 8 bytes.
    I64,
}

impl IdType {
    pub(crate) const fn size(self) -> u64 {
        match self {
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// How a rank gets the rows that come to it. R is the number of ranks, C the capacity, L the number of this rank's experts, K
/// the number of choices. Each tensor that travels has memory of its own, with rows side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// `[R, C]`: row `n` of a rank is its `n`-th token for this rank. The rows are in memory of the experts:
    /// [`Routed::received`] says where, and they stay there until a [`combine`](crate::Experts::combine) or
    /// [`release`](crate::Routed::release).
    Rank,
    /// One row for each token that came, by rank, then by its number there. R x C rows have room for all.
    Token,
    /// `[L, R x C]`: an expert's rows in that order, a row for each token that chose it. All L x R x C rows have memory.
    Expert,
    /// The same rows side by side: an expert begins at the next multiple of `alignment` after the one before it.
    /// R x C x min(K, L) + L x (`alignment` - 1) rows have room for all.
    Flat {
        /// The alignment, in rows: 1 to 65536.
        alignment: u32,
    },
}

impl Layout {
    /// `EpLayout` of the headers.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Rank => 0,
            Self::Token => 1,
            Self::Expert => 2,
            Self::Flat { .. } => 3,
        }
    }
}

/// A dispatch of this rank's tokens, for [`Experts::dispatch`](crate::Experts::dispatch).
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before Experts::dispatch"]
pub struct Dispatch {
    pub(crate) tokens: usize,
    pub(crate) ids: Memory,
    pub(crate) id_type: IdType,
    pub(crate) weights: Option<Memory>,
    pub(crate) rows: Vec<Memory>,
    /// Whether a kernel of the program makes the rows.
    pub(crate) of_kernel: bool,
    pub(crate) layout: Layout,
    pub(crate) out: Vec<Memory>,
    pub(crate) micro_batch: usize,
    pub(crate) zero_rest: bool,
    pub(crate) mask_along: bool,
    pub(crate) ids_into: Option<Memory>,
    pub(crate) weights_into: Option<Memory>,
    pub(crate) sources_into: Option<Memory>,
    pub(crate) column_major: bool,
    pub(crate) add_counts_to: Option<Memory>,
    pub(crate) add_waits_to: Option<Memory>,
}

impl Dispatch {
    /// `tokens` tokens, which may be none, and may be another number on each rank. `topk_ids` has K numbers of experts for each;
    /// -1 is none. `rows` is the first tensor: a row for each token. The layout is [`Layout::Rank`], if no other is given.
    pub fn new(tokens: usize, topk_ids: impl Into<Memory>, rows: impl Into<Memory>) -> Self {
        Self {
            tokens,
            ids: topk_ids.into(),
            id_type: IdType::default(),
            weights: None,
            rows: vec![rows.into()],
            of_kernel: false,
            layout: Layout::Rank,
            out: Vec::new(),
            micro_batch: 0,
            zero_rest: false,
            mask_along: false,
            ids_into: None,
            weights_into: None,
            sources_into: None,
            column_major: false,
            add_counts_to: None,
            add_waits_to: None,
        }
    }

    /// A dispatch whose rows a kernel makes, for [`Experts::dispatch_by`](crate::Experts::dispatch_by).
    pub fn of_kernel(tokens: usize, topk_ids: impl Into<Memory>) -> Self {
        let topk_ids = topk_ids.into();
        Self { rows: Vec::new(), of_kernel: true, ..Self::new(tokens, &topk_ids, &topk_ids) }
    }

    /// The type of `topk_ids`: [`IdType::I32`] if not given.
    pub fn ids_of(mut self, id_type: IdType) -> Self {
        self.id_type = id_type;
        self
    }

    /// The weights of the choices, K floats for each token, which travel with the tokens. If not given, all are 1, unless
    /// [`Combine::weights`] gives others.
    pub fn weights(mut self, topk_weights: impl Into<Memory>) -> Self {
        self.weights = Some(topk_weights.into());
        self
    }

    /// The next tensor, of those that [`also`](crate::ExpertsBuilder::also) names.
    pub fn with(mut self, rows: impl Into<Memory>) -> Self {
        self.rows.push(rows.into());
        self
    }

    /// Puts what comes into a layout, with its first tensor at `rows`. This and all other memory for what comes is not memory
    /// of what is sent: both are accessed at the same time.
    pub fn into(mut self, layout: Layout, rows: impl Into<Memory>) -> Self {
        self.layout = layout;
        self.out = vec![rows.into()];
        self
    }

    /// The memory for the next tensor that comes. Of quantised tokens the second is for the scales.
    pub fn and(mut self, rows: impl Into<Memory>) -> Self {
        self.out.push(rows.into());
        self
    }

    /// Memory for the local experts of each row of the layout: K numbers of the type of `topk_ids`, -1 for experts of other
    /// ranks. They are stored for rows that came, and for no others, if [`Self::mask_along`] does not say otherwise.
    /// [`Layout::Rank`] has R x C rows.
    pub fn ids_into(mut self, ids: impl Into<Memory>) -> Self {
        self.ids_into = Some(ids.into());
        self
    }

    /// Memory for the weights of each row of the layout: K floats, those of other ranks' experts, too.
    pub fn weights_into(mut self, weights: impl Into<Memory>) -> Self {
        self.weights_into = Some(weights.into());
        self
    }

    /// Memory for the source of each row of the layout: its rank and the number of its token there, two 32-bit numbers.
    pub fn sources_into(mut self, sources: impl Into<Memory>) -> Self {
        self.sources_into = Some(sources.into());
        self
    }

    /// Has the second tensor, such as the scales of quantised tokens, come column by column: its words of 4 bytes have the shape
    /// `[L, words of a row, R x C]` in [`Layout::Expert`], and `[words of a row, rows]` in the others that copy. `false`, if not
    /// given.
    pub fn column_major(mut self, columns: bool) -> Self {
        self.column_major = columns;
        self
    }

    /// Memory for statistics: L 32-bit numbers, to which the number of the rows that came for each expert is added.
    pub fn add_counts_to(mut self, counts: impl Into<Memory>) -> Self {
        self.add_counts_to = Some(counts.into());
        self
    }

    /// Memory for statistics: R 64-bit numbers, to which the time is added that this rank waited for each rank, in nanoseconds.
    /// The time counts from when the block of the kernel that counts it has sent its part of the tokens, or from the beginning of
    /// the call, if other blocks send. It ends when all that the rank sends has come, or with a capacity of up to 128, when the
    /// rank has begun the call.
    pub fn add_waits_to(mut self, waits: impl Into<Memory>) -> Self {
        self.add_waits_to = Some(waits.into());
        self
    }

    /// The micro-batch, 0 or 1: 0 if not given. Two may be under way at once.
    pub fn micro_batch(mut self, micro_batch: usize) -> Self {
        self.micro_batch = micro_batch;
        self
    }

    /// Makes the rows of the layout zero that nobody sent: `false`, if not given. Not for [`Layout::Rank`].
    pub fn zero_rest(mut self, zero: bool) -> Self {
        self.zero_rest = zero;
        self
    }

    /// Masks what [`Self::ids_into`] and [`Self::weights_into`] get: the ids of rows that nobody sent become -1, and the weights
    /// of these rows, and of other ranks' experts, become 0. `false`, if not given. Not for [`Layout::Rank`].
    pub fn mask_along(mut self, mask: bool) -> Self {
        self.mask_along = mask;
        self
    }
}

/// A combine, for [`Experts::combine`](crate::Experts::combine).
#[derive(Debug, Clone)]
#[must_use = "nothing is summed before Experts::combine"]
pub struct Combine<'a> {
    pub(crate) routed: &'a Routed,
    pub(crate) rows: Memory,
    pub(crate) weights: Option<Memory>,
    pub(crate) bias: Vec<Memory>,
    pub(crate) out: Memory,
    pub(crate) exact: bool,
    pub(crate) row_weights: Option<(Memory, Memory)>,
    pub(crate) add_waits_to: Option<Memory>,
}

impl<'a> Combine<'a> {
    /// The rows that the experts made, where the layout of the dispatch has their tokens, and the memory for a row for each
    /// token of this rank. Rows have the numbers and the type of the set-up, also if tokens travelled as something else.
    ///
    /// [`Layout::Expert`] and [`Layout::Flat`] have a row for each choice: it is multiplied by the choice's weight.
    /// [`Layout::Rank`] (here `[R, C]` rows side by side) and [`Layout::Token`] have one row for all choices of a token on this
    /// rank, which is summed as it is.
    pub fn new(routed: &'a Routed, rows: impl Into<Memory>, out: impl Into<Memory>) -> Self {
        Self {
            routed,
            rows: rows.into(),
            weights: None,
            bias: Vec::new(),
            out: out.into(),
            exact: false,
            row_weights: None,
            add_waits_to: None,
        }
    }

    /// The weights of this rank's tokens, K floats for each, in place of those of the dispatch. All ranks give some, or none
    /// does. Without [`exact`](Self::exact) they travel to the experts' ranks first.
    pub fn weights(mut self, topk_weights: impl Into<Memory>) -> Self {
        self.weights = Some(topk_weights.into());
        self
    }

    /// A row for each token of this rank that is added last. Given twice, the second is added behind the first.
    pub fn bias(mut self, rows: impl Into<Memory>) -> Self {
        self.bias.push(rows.into());
        self
    }

    /// Brings weights of the rows back, too: `given` has K floats for each row of the layout, and `taken` gets K floats for each
    /// token of this rank, the sums of those that the ranks have given, in the order of the ranks. All ranks call this, or none
    /// does. For [`Layout::Rank`] and [`Layout::Token`], without [`weights`](Self::weights).
    pub fn row_weights(mut self, given: impl Into<Memory>, taken: impl Into<Memory>) -> Self {
        self.row_weights = Some((given.into(), taken.into()));
        self
    }

    /// Memory for statistics, as of [`Dispatch::add_waits_to`].
    pub fn add_waits_to(mut self, waits: impl Into<Memory>) -> Self {
        self.add_waits_to = Some(waits.into());
        self
    }

    /// Brings the row of every choice to the token's rank, which sums them all and rounds once: the bits of one device with all
    /// experts. Otherwise each rank sums the rows of its experts, rounds, and sends one row. All ranks give the same. For
    /// [`Layout::Expert`] and [`Layout::Flat`], of experts that were set up [for it](crate::ExpertsBuilder::exact).
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }
}
