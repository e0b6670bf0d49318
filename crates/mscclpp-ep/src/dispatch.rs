//! Dispatches.

use std::sync::Arc;

use mscclpp::{DeviceBuffer, DevicePtr, Kernel, KernelArgs, gpu::Stream};

use crate::{
    Dispatch, Error, Experts, Layout, Memory, Receive, Result, Routed,
    handle::{AS_IT_IS, E4M3, EpDispatch, PARTS, REST_MASKED, REST_ZERO},
    kernels::Special,
    launch::{Direction, Launch},
    scratch::{alignment_of, is_aligned},
};

impl Experts {
    /// Sends each token once to every rank that has an expert of it, and puts what comes into the layout. All ranks make this
    /// call, with the same micro-batch, and each with its own layout. It does not block; the routing may be used as soon as it
    /// returns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory that does not fit; [`Error::TooManyTokens`] for more than the capacity, which is an
    /// error of the other ranks, too, when they look; what is wrong with earlier calls, as [`Self::check`] finds it, and then
    /// this call is not made.
    pub fn dispatch(&self, dispatch: &Dispatch, stream: &Stream) -> Result<Routed> {
        let (launch, routed) = self.given_launch(dispatch)?;
        self.put(launch, stream)?;
        self.accepted(routed)
    }

    /// Does a dispatch by a kernel of the program, which makes the rows that travel: `dispatchRows` in
    /// `mscclpp/ep_device.hpp`. `own` are the kernel's own parameters, the first ones. The dispatch is one
    /// [of a kernel](Dispatch::of_kernel).
    ///
    /// # Errors
    /// The same as of [`Self::dispatch`]; [`Error::InvalidArgument`] if the blocks of the kernel do not all fit on the device.
    ///
    /// # Safety
    /// The kernel has these parameters, then an `EpHandle` and an `EpDispatch`, and calls `dispatchRows` with them by all its
    /// threads. What it accesses besides is memory that lives until the call is complete.
    pub unsafe fn dispatch_by(
        &self,
        kernel: &Kernel,
        own: KernelArgs,
        dispatch: &Dispatch,
        stream: &Stream,
    ) -> Result<Routed> {
        let (launch, routed) = self.dispatch_launch(dispatch, own)?;
        self.put_by(kernel, launch, stream)?;
        self.accepted(routed)
    }

    /// Does the first half of a dispatch: sends the tokens, and waits for none that come. The program calls
    /// [`Receive::receive`] when it needs them; the kernels that it launches meanwhile run while the tokens travel. Other ranks
    /// may make this call or [`Self::dispatch`].
    ///
    /// # Errors
    /// The same as of [`Self::dispatch`].
    pub fn dispatch_send(&self, dispatch: &Dispatch, stream: &Stream) -> Result<(Routed, Receive)> {
        let (launch, routed) = self.given_launch(dispatch)?;
        if dispatch.tokens > self.handle.capacity as usize {
            // A dispatch of too many tokens sends none, so it is done whole.
            self.put(launch, stream)?;
            return Err(self.too_many_tokens());
        }
        Ok((routed, self.put_send(launch, stream)?))
    }

    /// An error for the routing of more tokens than the capacity.
    fn accepted(&self, routed: Routed) -> Result<Routed> {
        if routed.tokens > self.handle.capacity as usize { Err(self.too_many_tokens()) } else { Ok(routed) }
    }

    fn too_many_tokens(&self) -> Error {
        Error::TooManyTokens { rank: self.rank_in_job(), capacity: self.handle.capacity as usize }
    }

    /// The launch of a dispatch whose rows are given.
    fn given_launch(&self, dispatch: &Dispatch) -> Result<(Launch, Routed)> {
        if dispatch.of_kernel {
            return Err(Error::InvalidArgument(
                "a dispatch of a kernel is launched by dispatch_by(), which takes the kernel".to_owned(),
            ));
        }
        self.dispatch_launch(dispatch, KernelArgs::new())
    }

    fn dispatch_launch(&self, dispatch: &Dispatch, own: KernelArgs) -> Result<(Launch, Routed)> {
        self.check_failures()?;
        self.check_micro_batch(dispatch.micro_batch)?;
        self.check_received(dispatch.micro_batch)?;
        let Dispatch { tokens, ids, weights, rows, .. } = dispatch;
        let (count, choices) = (*tokens as u64, u64::from(self.handle.top_k));
        let refused = count > u64::from(self.handle.capacity);
        let sent = if refused { 0 } else { count };
        let tables = self.engine.tables.take(&self.engine.gpu, self.engine.table_bytes)?;
        let mut call = self.call(&tables.buffer, sent, dispatch.layout, &dispatch.out)?;
        if !dispatch.of_kernel {
            self.set_rows(&mut call, rows)?;
        }
        self.set_columns(&mut call, dispatch.layout, dispatch.column_major)?;
        call.micro_batch = dispatch.micro_batch as u32;
        call.refused = refused.into();
        if dispatch.layout != Layout::Rank {
            call.rest =
                u32::from(dispatch.zero_rest) * REST_ZERO + u32::from(dispatch.mask_along) * REST_MASKED;
        }
        let id_bytes = dispatch.id_type.size();
        call.id_bytes = id_bytes as u32;
        call.ids = ids.at_least("topk_ids", sent * choices * id_bytes, id_bytes)?;
        call.weights = Memory::optional(weights.as_ref(), "topk_weights", sent * choices * 4, 4)?;
        let (ranks, local) = (u64::from(self.handle.ranks), u64::from(self.handle.local));
        let all = ranks * u64::from(self.handle.capacity);
        let of_layout = if dispatch.layout == Layout::Rank { all } else { call.out_rows };
        let Dispatch { ids_into, weights_into, sources_into, add_counts_to, add_waits_to, .. } = dispatch;
        let along = [ids_into, weights_into, sources_into, add_counts_to, add_waits_to].map(Option::as_ref);
        let [ids_into, weights_into, sources_into, counts, waits] = along;
        let address = Memory::optional;
        let id_row = choices * id_bytes;
        call.out_ids = address(ids_into, "the memory for ids", of_layout * id_row, id_bytes)?;
        call.out_weights = address(weights_into, "the memory for weights", of_layout * choices * 4, 4)?;
        call.out_sources = address(sources_into, "the memory for sources", of_layout * 8, 4)?;
        call.added_counts = address(counts, "the memory for counts", 4 * local, 4)?;
        call.added_waits = address(waits, "the memory for waits", 8 * ranks, 8)?;
        let memories = [ids].into_iter().chain(weights).chain(rows).chain(&dispatch.out);
        let memories = memories.chain(along.into_iter().flatten());
        let mut launch =
            self.launch_of(Direction::Dispatch, dispatch.micro_batch, own, call, &tables, memories);
        launch.special = self.special_of(&call);
        let routed = Routed {
            tables,
            tokens: *tokens,
            layout: dispatch.layout,
            micro_batch: dispatch.micro_batch,
            out_rows: call.out_rows,
            column_major: dispatch.column_major,
            engine: Arc::downgrade(&self.engine),
            handle: self.handle,
            scratch: self.handle.scratch[self.rank()]
                .add(dispatch.micro_batch as u64 * self.handle.places.micro_batch_bytes),
        };
        Ok((launch, routed))
    }

    /// Sends other rows the way of an earlier dispatch: the tensors of this rank's tokens, and the memory for those that come.
    /// The layout is that of the routing. All ranks make this call, each with its own routing of the same dispatch.
    ///
    /// # Errors
    /// The same as of [`Self::dispatch`]; [`Error::InvalidArgument`] for a routing of other experts.
    pub fn dispatch_again(
        &self,
        routed: &Routed,
        rows: &[Memory],
        out: &[Memory],
        stream: &Stream,
    ) -> Result<()> {
        self.check_failures()?;
        self.check_routed(routed)?;
        self.check_received(routed.micro_batch)?;
        if routed.layout == Layout::Rank && routed.handle.segment_bytes != self.handle.segment_bytes {
            return Err(Error::InvalidArgument(
                "rows of another payload than that of the dispatch cannot come in Layout::Rank".to_owned(),
            ));
        }
        let mut call = self.call(&routed.tables.buffer, routed.tokens as u64, routed.layout, out)?;
        self.set_rows(&mut call, rows)?;
        self.set_columns(&mut call, routed.layout, routed.column_major && self.coming.len() > 1)?;
        call.micro_batch = routed.micro_batch as u32;
        call.again = 1;
        let memories = rows.iter().chain(out);
        let mut launch = self.launch_of(
            Direction::Dispatch,
            routed.micro_batch,
            KernelArgs::new(),
            call,
            &routed.tables,
            memories,
        );
        launch.special = self.special_of(&call);
        self.put(launch, stream)
    }

    /// Whether a dispatch may have a kernel of its own, and which.
    fn special_of(&self, call: &EpDispatch) -> Option<Special> {
        let handle = &self.handle;
        let [is_rank, is_token, is_expert] =
            [Layout::Rank, Layout::Token, Layout::Expert].map(|layout| call.layout == layout.number());
        let is_usual = handle.patience == 0
            && call.rows.iter().zip(&self.given).all(|(row, bytes)| is_aligned(*row, *bytes))
            && [call.again, call.refused] == [0; 2]
            && call.added_waits == DevicePtr::NULL;
        if handle.quantisation == E4M3 && handle.parts == 2 {
            let is_shared = handle.ranks == 2 && call.tokens >= self.engine.shared_tokens();
            let of_rank = if is_shared { Special::RankShared } else { Special::Rank };
            let special = is_rank.then_some(of_rank).or(is_expert.then_some(Special::Expert));
            return special.filter(|_| is_usual && call.rest == 0);
        }
        if handle.quantisation != AS_IT_IS || is_rank {
            return None;
        }
        // With many tokens, rows are taken to their places while others come. That takes longer for few tokens, and for rows that
        // are quantised on their way, which half of the blocks would do.
        let is_many = call.tokens >= self.engine.many_tokens();
        match (is_usual && is_token, is_many) {
            (true, true) => Some(Special::TokenByRow),
            (true, false) => Some(Special::Token),
            (false, true) => Some(Special::ByRow),
            (false, false) => None,
        }
    }

    /// The parameter of a dispatch of so many tokens, with the memory of its tensors checked.
    fn call(&self, tables: &DeviceBuffer, tokens: u64, layout: Layout, out: &[Memory]) -> Result<EpDispatch> {
        let mut call = EpDispatch {
            ids: DevicePtr::NULL,
            weights: DevicePtr::NULL,
            rows: [DevicePtr::NULL; PARTS],
            tables: tables.ptr(),
            out: [DevicePtr::NULL; PARTS],
            out_ids: DevicePtr::NULL,
            out_weights: DevicePtr::NULL,
            out_sources: DevicePtr::NULL,
            added_counts: DevicePtr::NULL,
            added_waits: DevicePtr::NULL,
            out_rows: u64::MAX,
            column_rows: 0,
            tokens: tokens as u32,
            id_bytes: 4,
            layout: layout.number(),
            alignment: 1,
            micro_batch: 0,
            again: 0,
            refused: 0,
            rest: 0,
        };
        if layout == Layout::Rank {
            return Ok(call);
        }
        let coming = &self.coming;
        if out.len() != coming.len() {
            let (gave, needed) = (out.len(), coming.len());
            return Err(Error::InvalidArgument(format!(
                "{layout:?} needs memory for {needed} tensors that come, and got {gave}"
            )));
        }
        if let Layout::Flat { alignment } = layout {
            if !(1..=1 << 16).contains(&alignment) {
                return Err(Error::InvalidArgument(format!(
                    "Layout::Flat with an alignment of {alignment}; give 1 to 65536"
                )));
            }
            call.alignment = alignment;
        }
        for (i, ((at, memory), bytes)) in call.out.iter_mut().zip(out).zip(coming).enumerate() {
            call.out_rows = call.out_rows.min(memory.bytes() / bytes);
            let least = match layout {
                Layout::Expert => {
                    u64::from(self.handle.local * self.handle.ranks * self.handle.capacity) * bytes
                }
                _ => 0,
            };
            let what = format_args!("tensor {i} that comes to dispatch");
            *at = memory.at_least(what, least, alignment_of(*bytes))?;
        }
        if layout == Layout::Expert {
            call.out_rows = u64::from(self.handle.local * self.handle.ranks * self.handle.capacity);
        }
        Ok(call)
    }

    /// Notes the tensors of this rank's tokens.
    fn set_rows(&self, call: &mut EpDispatch, rows: &[Memory]) -> Result<()> {
        let given = &self.given;
        if rows.len() != given.len() {
            let (gave, needed) = (rows.len(), given.len());
            return Err(Error::InvalidArgument(format!("dispatch takes {needed} tensors, and got {gave}")));
        }
        for (i, ((at, memory), bytes)) in call.rows.iter_mut().zip(rows).zip(given).enumerate() {
            let what = format_args!("tensor {i} of dispatch");
            *at = memory.at_least(what, u64::from(call.tokens) * bytes, alignment_of(*bytes))?;
        }
        Ok(())
    }

    /// Notes how long the columns of the second tensor are, if it lies column by column.
    fn set_columns(&self, call: &mut EpDispatch, layout: Layout, column_major: bool) -> Result<()> {
        if !column_major {
            return Ok(());
        }
        if layout == Layout::Rank || self.coming.len() < 2 {
            return Err(Error::InvalidArgument(
                "column_major() is for the second tensor of layouts that copy; there is none here".to_owned(),
            ));
        }
        call.column_rows = match layout {
            Layout::Expert => u64::from(self.handle.ranks * self.handle.capacity),
            _ => call.out_rows,
        };
        Ok(())
    }
}
