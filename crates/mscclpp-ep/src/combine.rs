//! Combines.

use mscclpp::{Kernel, KernelArgs, gpu::Stream};

use crate::{
    Combine, Error, Experts, Layout, Memory, Receive, Result,
    handle::EpCombine,
    kernels::Special,
    launch::{Direction, Launch},
    scratch::{alignment_of, is_aligned},
};

impl Experts {
    /// Brings the experts' rows of each token back to the token's rank, and sums them. All ranks make this call, each with its
    /// own routing of the same dispatch. It also gives the rows of that dispatch back, if its layout is [`Layout::Rank`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory that does not fit, a routing of other experts, or an exact combine that is not
    /// set up; what is wrong with earlier calls, as [`Self::check`] finds it, and then this call is not made.
    pub fn combine(&self, combine: &Combine<'_>, stream: &Stream) -> Result<()> {
        self.put(self.combine_launch(combine, KernelArgs::new())?, stream)
    }

    /// Does a combine by a kernel of the program, which does more with the sums: `combineRows` in `mscclpp/ep_device.hpp`.
    /// `own` are the kernel's own parameters, the first ones.
    ///
    /// # Errors
    /// The same as of [`Self::combine`]; [`Error::InvalidArgument`] if the blocks of the kernel do not all fit on the device.
    ///
    /// # Safety
    /// The kernel has these parameters, then an `EpHandle` and an `EpCombine`, and calls `combineRows` with them by all its
    /// threads, for the type of the set-up. What it accesses besides is memory that lives until the call is complete.
    pub unsafe fn combine_by(
        &self,
        kernel: &Kernel,
        own: KernelArgs,
        combine: &Combine<'_>,
        stream: &Stream,
    ) -> Result<()> {
        self.put_by(kernel, self.combine_launch(combine, own)?, stream)
    }

    /// Does the first half of a combine: sends the experts' rows, and waits for none that come. [`Receive::receive`] sums them.
    /// With [`Combine::weights`], without [`exact`](Combine::exact), it waits for those of the ranks whose tokens came here.
    ///
    /// # Errors
    /// The same as of [`Self::combine`].
    pub fn combine_send(&self, combine: &Combine<'_>, stream: &Stream) -> Result<Receive> {
        self.put_send(self.combine_launch(combine, KernelArgs::new())?, stream)
    }

    fn combine_launch(&self, combine: &Combine<'_>, own: KernelArgs) -> Result<Launch> {
        self.check_failures()?;
        let Combine { routed, rows, weights, bias, out, exact, row_weights, add_waits_to } = combine;
        self.check_routed(routed)?;
        self.check_received(routed.micro_batch)?;
        let one_row = matches!(routed.layout, Layout::Rank | Layout::Token);
        if *exact && (one_row || !self.engine.exact) {
            let why = if one_row {
                "Layout::Expert or Layout::Flat"
            } else {
                "experts that are set up with exact(true)"
            };
            return Err(Error::InvalidArgument(format!("an exact combine is for {why}")));
        }
        if row_weights.is_some() && (!one_row || weights.is_some()) {
            return Err(Error::InvalidArgument(
                "weights of rows are for Layout::Rank and Layout::Token, and for combines without weights"
                    .to_owned(),
            ));
        }
        if bias.len() > 2 {
            return Err(Error::InvalidArgument(format!(
                "combine with {} biases; 2 are the most",
                bias.len()
            )));
        }
        let (tokens, row) = (routed.tokens as u64, u64::from(self.handle.result_bytes));
        let choices = u64::from(self.handle.top_k);
        let alignment = alignment_of(row);
        let rows_of_layout = match routed.layout {
            Layout::Rank => u64::from(self.handle.ranks * self.handle.capacity),
            Layout::Expert => u64::from(self.handle.ranks * self.handle.capacity * self.handle.local),
            // The dispatch has put rows anywhere into as many.
            Layout::Token | Layout::Flat { .. } => routed.out_rows,
        };
        let bias_at = |i: usize| Memory::optional(bias.get(i), "bias", tokens * row, alignment);
        let (given, taken) = row_weights.as_ref().map(|(given, taken)| (given, taken)).unzip();
        let call = EpCombine {
            rows: rows.at_least("the rows of combine", rows_of_layout * row, alignment)?,
            tables: routed.tables.buffer.ptr(),
            weights: Memory::optional(weights.as_ref(), "topk_weights", tokens * choices * 4, 4)?,
            bias: [bias_at(0)?, bias_at(1)?],
            out: out.at_least("the result of combine", tokens * row, alignment)?,
            row_weights: Memory::optional(given, "the weights of rows", rows_of_layout * choices * 4, 4)?,
            out_weights: Memory::optional(taken, "the memory for weights", tokens * choices * 4, 4)?,
            added_waits: Memory::optional(
                add_waits_to.as_ref(),
                "the memory for waits",
                8 * u64::from(self.handle.ranks),
                8,
            )?,
            out_rows: routed.out_rows,
            tokens: tokens as u32,
            micro_batch: routed.micro_batch as u32,
            exact: (*exact).into(),
            one_row: one_row.into(),
            late: weights.is_some().into(),
            layout: routed.layout.number(),
        };
        let memories =
            [rows, out].into_iter().chain(weights).chain(bias).chain(given).chain(taken).chain(add_waits_to);
        let all = [call.rows, call.out, call.bias[0], call.bias[1]];
        let are_aligned = all.iter().all(|memory| is_aligned(*memory, row));
        let is_usual = row_weights.is_none() && add_waits_to.is_none() && are_aligned;
        let usual = match (exact, one_row) {
            (true, _) => Special::Exact,
            (false, true) => Special::Rows,
            (false, false) => Special::Sums,
        };
        let mut launch =
            self.launch_of(Direction::Combine, routed.micro_batch, own, call, &routed.tables, memories);
        launch.special = is_usual.then_some(usual);
        Ok(launch)
    }
}
