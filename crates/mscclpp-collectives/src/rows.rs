//! An `all_reduce` of rows by a kernel of the program's, which goes on with each row.

mod launch;

use mscclpp::{DeviceBuffer, DevicePtr, Kernel, KernelArgs, LaunchConfig, Stream};

use crate::{
    Collectives, DataType, DeviceSlice, Element, Error, Result,
    handle::{OUTPUTS, Output, VECTORS},
    register::overlap,
    select::Selection,
};

/// The bytes of a vector: what a thread has of a row at once.
const VECTOR: u64 = 16;

/// The rows of an [`all_reduce_rows`](Collectives::all_reduce_rows): this rank's, and where the results go. Outputs are
/// numbered in the order in which they are given, for `store` and `storeOfRow` of the kernel. It keeps their memory, if they
/// are not given by addresses.
///
/// All ranks give as many rows, as long and of one type, and the same outputs. No output is the memory of this rank's
/// rows, since other blocks may not have sent these yet. It may be memory of which the kernel reads for a vector no
/// more than that vector, such as a residual.
#[derive(Debug, Clone)]
pub struct Rows {
    send: DevicePtr,
    rows: u64,
    columns: u64,
    data_type: DataType,
    outputs: Vec<Given>,
    buffers: Vec<DeviceBuffer>,
}

#[derive(Debug, Clone, Copy)]
struct Given {
    memory: DevicePtr,
    /// The same as in [`Output`].
    vector_bytes: u32,
    is_own: bool,
}

impl Rows {
    /// Rows of `columns` numbers, behind each other: `half::f16`, `half::bf16` or `f32`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for numbers of another type, a length that is no multiple of `columns`, rows that are
    /// no multiple of 16 bytes or longer than 64 KiB, and an address that is no multiple of 16.
    pub fn new<T: Element>(rows: &DeviceSlice<T>, columns: usize) -> Result<Self> {
        if columns == 0 || !rows.len().is_multiple_of(columns) {
            return Err(Error::InvalidArgument(format!("{} numbers in rows of {columns}", rows.len())));
        }
        let given = Self::at(rows.ptr(), (rows.len() / columns) as u64, columns as u64, T::DATA_TYPE)?;
        Ok(Self { buffers: vec![rows.buffer().clone()], ..given })
    }

    /// The same by an address, for bindings: so many rows of so many numbers. It does not keep the memory.
    ///
    /// # Errors
    /// As [`Rows::new`].
    pub fn at(rows: DevicePtr, count: u64, columns: u64, data_type: DataType) -> Result<Self> {
        if !matches!(data_type, DataType::F16 | DataType::Bf16 | DataType::F32) {
            return Err(Error::InvalidArgument(format!(
                "rows of {data_type:?}; sums are made of F16, Bf16 and F32"
            )));
        }
        let of_row = columns.saturating_mul(data_type.size());
        let most = VECTORS * 1024 * VECTOR;
        if columns == 0 || !of_row.is_multiple_of(VECTOR) || of_row > most {
            return Err(Error::InvalidArgument(format!(
                "rows of {of_row} bytes; they have a multiple of {VECTOR}, and up to {most}"
            )));
        }
        if of_row.checked_mul(count).is_none_or(|bytes| bytes >= 1 << 62) {
            return Err(Error::InvalidArgument(format!("{count} rows of {of_row} bytes are too many")));
        }
        aligned("rows", rows)?;
        Ok(Self { send: rows, rows: count, columns, data_type, outputs: Vec::new(), buffers: Vec::new() })
    }

    /// Adds an output of as many numbers as the rows have. For each vector of 16 bytes of a row it has 16 bytes or 8, so
    /// its numbers are as large as those of the rows, or half as large. Every rank gets all of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length or size of numbers, an address that is no multiple of 16, and
    /// more than four outputs.
    pub fn output<T: Element>(self, output: &DeviceSlice<T>) -> Result<Self> {
        self.with_output(output, false)
    }

    /// Adds an output, as [`Rows::output`] does, that each rank needs only of rows that it sums up itself: in one step
    /// these are all, and in two steps those whose number is this rank's modulo the ranks. The rest is left as it is,
    /// and is not sent. A call of as many rows and columns and the same selector shares the rows out in the same way,
    /// so that a residual may stay where it is made, as long as nobody else reads it.
    ///
    /// # Errors
    /// The same as of [`Rows::output`].
    pub fn own_output<T: Element>(self, output: &DeviceSlice<T>) -> Result<Self> {
        self.with_output(output, true)
    }

    /// Adds an output of one number of 4 bytes for each row, such as an `f32`. Every rank gets all of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length or size of numbers, and more than four outputs.
    pub fn row_output<T: Element>(self, output: &DeviceSlice<T>) -> Result<Self> {
        if T::DATA_TYPE.size() != 4 || output.len() as u64 != self.rows {
            return Err(Error::InvalidArgument(format!(
                "{} numbers of {} bytes as an output of a number of 4 bytes for each of {} rows",
                output.len(),
                T::DATA_TYPE.size(),
                self.rows
            )));
        }
        Ok(self.row_output_at(output.ptr())?.keeping(output))
    }

    /// Adds an output by its address, as [`Rows::output`] does, or [`Rows::own_output`] if `is_own`: for bindings. It
    /// does not keep the memory.
    ///
    /// # Errors
    /// The same as of [`Rows::output`].
    pub fn output_at(self, output: DevicePtr, data_type: DataType, is_own: bool) -> Result<Self> {
        let numbers = self.rows * self.columns;
        self.with_numbers(output, numbers, data_type, is_own)
    }

    /// Adds an output by its address, as [`Rows::row_output`] does: for bindings. It does not keep the memory.
    ///
    /// # Errors
    /// The same as of [`Rows::row_output`].
    pub fn row_output_at(self, output: DevicePtr) -> Result<Self> {
        self.with(output, 0, false)
    }

    fn with_output<T: Element>(self, output: &DeviceSlice<T>, is_own: bool) -> Result<Self> {
        let with = self.with_numbers(output.ptr(), output.len() as u64, T::DATA_TYPE, is_own)?;
        Ok(with.keeping(output))
    }

    fn with_numbers(self, output: DevicePtr, numbers: u64, of: DataType, is_own: bool) -> Result<Self> {
        let vector_bytes = VECTOR * of.size() / self.data_type.size();
        if !matches!(vector_bytes, 8 | 16) || numbers != self.rows * self.columns {
            return Err(Error::InvalidArgument(format!(
                "{numbers} numbers of {} bytes as an output of {} rows of {} {:?}; give as many, as large or half as large",
                of.size(),
                self.rows,
                self.columns,
                self.data_type
            )));
        }
        aligned("an output", output)?;
        self.with(output, vector_bytes as u32, is_own)
    }

    fn with(mut self, output: DevicePtr, vector_bytes: u32, is_own: bool) -> Result<Self> {
        let bytes = match vector_bytes {
            0 => self.rows * 4,
            _ => self.rows * (self.row_bytes() / VECTOR) * u64::from(vector_bytes),
        };
        if overlap((output, bytes), (self.send, self.rows * self.row_bytes())) {
            return Err(Error::InvalidArgument(
                "an output in the memory of the rows, of which some may not have been sent when it is stored"
                    .into(),
            ));
        }
        if self.outputs.len() == OUTPUTS {
            return Err(Error::InvalidArgument(format!("more than {OUTPUTS} outputs of rows")));
        }
        self.outputs.push(Given { memory: output, vector_bytes, is_own });
        Ok(self)
    }

    fn keeping<T: Element>(mut self, output: &DeviceSlice<T>) -> Self {
        self.buffers.push(output.buffer().clone());
        self
    }

    fn row_bytes(&self) -> u64 {
        self.columns * self.data_type.size()
    }

    /// The outputs as the kernel knows them, and the bytes of a row's results that ranks send.
    fn outputs(&self) -> ([Output; OUTPUTS], u32) {
        let vectors = (self.row_bytes() / VECTOR) as u32;
        let (mut outputs, mut end) = ([Output::NONE; OUTPUTS], 0);
        for (output, given) in outputs.iter_mut().zip(&self.outputs) {
            let Given { memory, vector_bytes, is_own } = *given;
            let at = if is_own { Output::NOT_SENT } else { end };
            *output = Output { memory, vector_bytes, at };
            if !is_own {
                end += (vectors * vector_bytes).max(8).next_multiple_of(VECTOR as u32);
            }
        }
        (outputs, end)
    }
}

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
    /// [`Error::InvalidArgument`] for memory or a stream of another device, rows that do not fit into the scratch, and where
    /// all goes [by ports](crate::CollectivesBuilder::by_ports).
    /// Others as for [`Collectives::enqueue`].
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
    /// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<(), mscclpp_collectives::Error> {
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
        let inner = &*self.inner;
        self.check_callable(stream)?;
        self.expect_here(&rows.buffers)?;
        let mapped = inner.mapped()?;
        let Some(selection) = inner.choose_rows(rows)? else { return Ok(()) };
        let args = args
            .with_owner(inner.owner.clone())
            .keeping_each(&rows.buffers)
            .with(mapped.handle)
            .with(inner.rows_call(rows, selection));
        let config = LaunchConfig::linear(selection.blocks, selection.threads);
        let mut order = inner.order.lock();
        order.before(stream)?;
        // SAFETY: the caller answers for the kernel, its other parameters and their memory.
        unsafe { kernel.launch(stream, config, &args)? };
        order.after(stream)
    }

    /// How [`Collectives::all_reduce_rows`] would do it. None if there are no rows: then nothing is launched.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for rows that do not fit into the scratch.
    pub fn rows_selection(&self, rows: &Rows) -> Result<Option<Selection>> {
        self.inner.choose_rows(rows)
    }
}

fn aligned(what: &str, memory: DevicePtr) -> Result<()> {
    if memory.0.is_multiple_of(VECTOR) {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} at {:#x}, which is no multiple of {VECTOR}", memory.0)))
}
