//! The `all_reduce` of rows by a kernel of the program's.

use mscclpp::{Kernel, KernelArgs, Stream};

use crate::{Collectives, Result, Rows, choice::Selection, plan::rows_signature};

impl Collectives {
    /// Sums up the rows of all ranks and hands each to `kernel`, in one launch. The kernel is the program's own, made
    /// with the header `mscclpp/collective_device.hpp`: it calls `allReduceRows` with what it does with a row, such as to
    /// add a residual, to normalise and to quantise. `args` are its own parameters; behind them it has a
    /// `CollectiveHandle` and a `CollectiveRows`. It has one dimension of blocks and threads, of which the
    /// [`Selector`](crate::Selector) chooses how many; as a block may have 1024 threads, it is declared with
    /// `__launch_bounds__(1024)`. Load it before the ranks make calls: loading may wait for kernels that run on the device,
    /// and those wait for other ranks.
    ///
    /// In all else it is a call like the others: every rank makes it, in the same order; it may be captured; it does
    /// not wait for other ranks. Sums have the bits that [`all_reduce`](Self::all_reduce) gives, before they are rounded.
    ///
    /// # Safety
    /// The kernel calls `allReduceRows` once, by all its threads, with the two parameters that it is given and the type of
    /// these rows, and stores to outputs as they are given here. `args` are its other parameters; memory to which they
    /// point, and that of rows and outputs which are given by addresses, lives until the call is complete, or as long as the
    /// graph, is of the size that follows from the rows, and is not changed meanwhile but by the kernel.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for memory or a stream of another device, rows that do not
    /// fit into the scratch, and between nodes. Others as for [`Collectives::enqueue`].
    ///
    /// ```
    /// # #[cfg(all(feature = "cuda-ipc", feature = "half"))]
    /// # fn main() -> Result<(), mscclpp_collectives::Error> {
    /// # use std::sync::Arc;
    /// use mscclpp::prelude::*;
    /// use mscclpp_collectives::{Collectives, DeviceSlice, Rows};
    /// use half::f16;
    ///
    /// const ADD_BIAS: KernelSource<'_> = KernelSource::new("add_bias.cu", r#"
    /// #include <mscclpp/collective_device.hpp>
    /// using namespace mscclpp;
    /// using Numbers = VectorNumbers<Number<ReduceF16>>;
    ///
    /// struct AddBias {
    ///   struct Kept { Bytes16 numbers; };
    ///   const void* bias;
    ///   __device__ void prefetch(const RowVector& at, Kept& kept) const { kept.numbers = at.ofColumn(bias); }
    ///   __device__ void reduced(const RowVector& at, const float (&sums)[8], Kept& kept) const {
    ///     float numbers[8];
    ///     Numbers::widen(kept.numbers, numbers);
    ///     for (int i = 0; i < 8; ++i) numbers[i] += sums[i];
    ///     kept.numbers = Numbers::narrow(numbers);
    ///   }
    ///   template <class Row, uint32_t N>
    ///   __device__ void finish(const Row& row, Kept (&kept)[N]) const {
    ///     row.each(kept, [&](const RowVector& at, const Kept& mine) { row.store(0, at, mine.numbers); });
    ///   }
    /// };
    /// extern "C" __global__ void __launch_bounds__(1024)
    ///     add_bias(const void* bias, const MSCCLPP_GRID_CONSTANT CollectiveHandle comm,
    ///              const MSCCLPP_GRID_CONSTANT CollectiveRows rows) {
    ///   allReduceRows<Number<ReduceF16>>(comm, rows, AddBias{bias});
    /// }
    /// "#);
    ///
    /// # use mscclpp_collectives::Result;
    /// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<()> {
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
    /// # let rank = comm.bootstrap().rank();
    /// let gpu = comm.context().gpu(rank)?;
    /// let kernel = Module::load(&gpu, &ADD_BIAS)?.kernel("add_bias")?;
    /// let collectives = Collectives::new(&comm, &gpu)?;
    /// let stream = gpu.stream()?;
    ///
    /// let numbers = DeviceSlice::<f16>::new(&gpu.allocate(3 * 2 * 64)?)?; // three rows of 64
    /// numbers.write(&[f16::from_f32(1.0 + rank as f32); 3 * 64])?;
    /// let bias = gpu.allocate(2 * 64)?; // zeros
    /// let result = DeviceSlice::<f16>::new(&gpu.allocate(3 * 2 * 64)?)?;
    /// let rows = Rows::new(&numbers, 64)?.output(&result)?;
    /// // SAFETY: the kernel's other parameter is the bias, which the launch keeps.
    /// unsafe { collectives.all_reduce_rows(&rows, &kernel, KernelArgs::new().with(&bias), &stream)? };
    /// collectives.synchronize(&stream)?;
    /// assert_eq!(result.read()?, [f16::from_f32(3.0); 3 * 64]);
    /// # comm.bootstrap().barrier()?;
    /// # Ok(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(all(feature = "cuda-ipc", feature = "half")))]
    /// # fn main() {}
    /// ```
    pub unsafe fn all_reduce_rows(
        &self,
        rows: &Rows,
        kernel: &Kernel,
        args: KernelArgs,
        stream: &Stream,
    ) -> Result<()> {
        self.check_callable(stream)?;
        self.expect_here(&rows.buffers)?;
        let (rank, engine) = (&*self.rank, &*self.engine);
        let Some(selection) = engine.choose_rows(rank, rows)? else { return Ok(()) };
        let buffers: Vec<_> = rows.buffers.iter().collect();
        let call = self.call(stream, &buffers);
        let signature = rows_signature(rows.rows, rows.columns, rows.data_type);
        rank.order.put(stream, || {
            self.watch.call(signature)?;
            // SAFETY: the caller's promise.
            unsafe { engine.all_reduce_rows(rank, rows, selection, (kernel, args), &call) }
        })
    }

    /// How [`Collectives::all_reduce_rows`] would do it. None if there are no rows: then nothing is launched.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for rows that do not fit into the scratch.
    pub fn rows_selection(&self, rows: &Rows) -> Result<Option<Selection>> {
        self.engine.choose_rows(&self.rank, rows)
    }
}
