//! The routing of a dispatch, as a program sees it.

use std::{
    mem::offset_of,
    sync::{Arc, Weak},
};

use mscclpp::{
    DevicePtr, Kernel, Stream,
    gpu::{KernelArgs, LaunchConfig},
};

use crate::{
    Error, Experts, Layout, Result,
    experts::Engine,
    handle::{EpCounts, EpHandle},
    tables::{Tables, keeping_if_captured},
};

/// The routing of a dispatch: which row of which rank each token has, and what came. It does not age: any number of later
/// calls of the same experts may use it. Kernels that read what it has in device memory run in the stream of the next
/// dispatch, or are complete before the routing is dropped.
#[derive(Debug)]
pub struct Routed {
    pub(crate) tables: Arc<Tables>,
    pub(crate) tokens: usize,
    pub(crate) layout: Layout,
    pub(crate) micro_batch: usize,
    /// The rows that the memory of the layout has; more than there are for [`Layout::Rank`].
    pub(crate) out_rows: u64,
    /// Whether the second tensor of the layout lies column by column.
    pub(crate) column_major: bool,
    /// The engine of the experts that made it.
    pub(crate) engine: Weak<Engine>,
    pub(crate) handle: EpHandle,
    /// Where this rank's rows of the micro-batch are.
    pub(crate) scratch: DevicePtr,
}

/// Where the rows of a tensor are that came in [`Layout::Rank`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The address of row 0 of rank 0.
    pub ptr: DevicePtr,
    /// The bytes of a row.
    pub row_bytes: u64,
    /// The bytes from a row to the next one of the same rank.
    pub row_stride: u64,
    /// The bytes from the rows of a rank to those of the next.
    pub rank_stride: u64,
}

impl Routed {
    /// The number of this rank's tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether these experts, or others of the same set-up with another payload, made it. Their calls take no other.
    #[must_use]
    pub fn is_of(&self, experts: &Experts) -> bool {
        self.engine.as_ptr() == Arc::as_ptr(&experts.engine)
    }

    /// The layout in which the tokens came.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Where the rows of tensor `part` are that came in [`Layout::Rank`], until their combine or release.
    /// Kernels that read them come before it in their stream. The next dispatch of the same micro-batch comes after it:
    /// otherwise these experts cannot be used any more, unless their capacity is at most 128.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another layout, or a tensor that does not exist.
    pub fn received(&self, part: usize) -> Result<Received> {
        if self.layout != Layout::Rank {
            return Err(Error::InvalidArgument(format!(
                "received() is for Layout::Rank, and this dispatch had {:?}",
                self.layout
            )));
        }
        let parts = self.handle.parts as usize;
        if part >= parts {
            return Err(Error::InvalidArgument(format!("tensor {part} of {parts} that travel")));
        }
        let row_stride = u64::from(self.handle.segment_stride[part]);
        Ok(Received {
            ptr: self.scratch.add(self.handle.places.segments[part]),
            row_bytes: self.handle.segment_bytes[part].into(),
            row_stride,
            rank_stride: row_stride * u64::from(self.handle.capacity),
        })
    }

    /// Gives the rows of a dispatch of [`Layout::Rank`] back without a combine, when the work before it in the stream is
    /// complete. All ranks may write there then. Without effect for other layouts, and if there was a dispatch of this
    /// micro-batch since.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the experts that made the routing were dropped.
    pub fn release(&self, stream: &Stream) -> Result<()> {
        let engine = self.engine()?;
        if self.handle.places.other_bytes != 0 {
            // The rows are copies out of packets, which no rank writes: there is nothing to give back.
            return Ok(());
        }
        self.launch(&engine, &engine.release, LaunchConfig::linear(1, 32), self.args_of_tables(), stream)
    }

    /// Checks on the device, behind the work in the stream, that the rows of [`Self::received`] are still those of this dispatch.
    /// If they were given back before, or another dispatch of the micro-batch came, the next check of the experts returns
    /// [`Error::RowsGone`]. It belongs behind kernels that read the rows, and is a help to find those that come too late. Without
    /// effect for other layouts. Does not block, and may be captured.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the experts that made the routing were dropped; the errors of a launch.
    pub fn check_received(&self, stream: &Stream) -> Result<()> {
        let engine = self.engine()?;
        if self.layout != Layout::Rank {
            return Ok(());
        }
        self.launch(
            &engine,
            &engine.check_received,
            LaunchConfig::linear(1, 1),
            self.args_of_tables(),
            stream,
        )
    }

    pub(crate) fn engine(&self) -> Result<Arc<Engine>> {
        let dropped = || Error::InvalidArgument("the experts that made this routing were dropped".to_owned());
        self.engine.upgrade().ok_or_else(dropped)
    }

    fn args_of_tables(&self) -> KernelArgs {
        KernelArgs::new().with(self.handle).with(&self.tables.buffer).with(self.micro_batch as u32)
    }

    /// Puts a small kernel into the stream, in the order of the calls. The arguments are its parameters.
    pub(crate) fn launch(
        &self,
        engine: &Engine,
        kernel: &Kernel,
        config: LaunchConfig,
        args: KernelArgs,
        stream: &Stream,
    ) -> Result<()> {
        let args = keeping_if_captured(args.with_owner(engine.owner.clone()), &self.tables, stream)?;
        engine.order.put(stream, || {
            // SAFETY: these are the kernel's parameters.
            unsafe { kernel.launch(stream, config, &args) }.map_err(Error::from)
        })
    }

    /// How many rows came from each rank. The dispatch is complete; waits until the device has answered.
    ///
    /// # Errors
    /// [`Error::Below`] if the device does not answer.
    pub fn rows_of_ranks(&self) -> Result<Vec<u32>> {
        Ok(self.counts()?.received[..self.handle.ranks as usize].to_vec())
    }

    /// How many rows came for each expert of this rank. The dispatch is complete; waits until the device has answered.
    ///
    /// # Errors
    /// [`Error::Below`] if the device does not answer.
    pub fn rows_of_experts(&self) -> Result<Vec<u32>> {
        let mut rows = vec![0; self.handle.local as usize];
        self.tables.buffer.read_params(size_of::<EpCounts>() as u64, &mut rows)?;
        Ok(rows)
    }

    /// The address of the counts of [`Self::rows_of_experts`], as 32-bit numbers in device memory.
    #[must_use]
    pub fn rows_of_experts_on_device(&self) -> DevicePtr {
        self.tables.buffer.ptr().add(size_of::<EpCounts>() as u64)
    }

    /// The address of the counts of [`Self::rows_of_ranks`], as 32-bit numbers in device memory. [`Layout::Token`] has as many
    /// rows as their sum.
    #[must_use]
    pub fn rows_of_ranks_on_device(&self) -> DevicePtr {
        self.tables.buffer.ptr().add(offset_of!(EpCounts, received) as u64)
    }

    /// Where the rows of each expert begin in [`Layout::Flat`], and where those of one more would, as 32-bit numbers in device
    /// memory: all are multiples of the alignment.
    #[must_use]
    pub fn offsets_on_device(&self) -> DevicePtr {
        self.tables.buffer.ptr().add(self.handle.places.table_offsets)
    }

    /// Returns what came with row `n` of rank `rank`: the token's number there, the local expert of each choice (-1 for those
    /// elsewhere), and the weights. The dispatch is complete; waits until the device has answered.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a row that cannot be; [`Error::Below`] if the device does not answer.
    pub fn row(&self, rank: usize, n: usize) -> Result<(u32, Vec<i32>, Vec<f32>)> {
        let handle = &self.handle;
        if rank >= handle.ranks as usize || n >= handle.capacity as usize {
            return Err(Error::InvalidArgument(format!(
                "row {n} of rank {rank}, of {} rows of {} ranks",
                handle.capacity, handle.ranks
            )));
        }
        let along = u64::from(handle.segment_stride[handle.parts as usize]);
        let at = handle.places.table_received + (rank as u64 * u64::from(handle.capacity) + n as u64) * along;
        let choices = handle.top_k as usize;
        let (mut token, mut ids, mut weights) = ([0u32], vec![0i32; choices], vec![0f32; choices]);
        self.tables.buffer.read_params(at, &mut token)?;
        self.tables.buffer.read_params(at + 4, &mut ids)?;
        self.tables.buffer.read_params(at + 4 + 4 * choices as u64, &mut weights)?;
        Ok((token[0], ids, weights))
    }

    fn counts(&self) -> Result<EpCounts> {
        let mut counts = [EpCounts::default()];
        self.tables.buffer.read_params(0, &mut counts)?;
        Ok(counts[0])
    }
}
