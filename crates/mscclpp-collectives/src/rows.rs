//! An `all_reduce` of rows by a kernel of the program's, which goes on with each row.

use mscclpp::{DeviceBuffer, DevicePtr};

use crate::{
    DataType, DeviceSlice, Element, Error, Result,
    handle::{OUTPUTS, Output, VECTORS},
    plan::overlap,
};

/// The bytes of a vector: what a thread has of a row at once.
pub(crate) const VECTOR: u64 = 16;

/// The rows of an [`all_reduce_rows`](crate::Collectives::all_reduce_rows): this rank's, and where the results go. Outputs are
/// numbered in the order in which they are given, for `store` and `storeOfRow` of the kernel. It keeps their memory, if they
/// are not given by addresses.
///
/// All ranks give as many rows, as long and of one type, and the same outputs. No output is the memory of this rank's
/// rows, since other blocks may not have sent these yet. It may be memory of which the kernel reads for a vector no
/// more than that vector, such as a residual.
#[derive(Debug, Clone)]
pub struct Rows {
    pub(crate) send: DevicePtr,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) data_type: DataType,
    outputs: Vec<Given>,
    pub(crate) buffers: Vec<DeviceBuffer>,
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
                "an output overlaps the rows, and would be stored before all rows have been sent".into(),
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

    pub(crate) fn row_bytes(&self) -> u64 {
        self.columns * self.data_type.size()
    }

    /// The outputs as the kernel knows them, and the bytes of a row's results that ranks send.
    pub(crate) fn outputs(&self) -> ([Output; OUTPUTS], u32) {
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

fn aligned(what: &str, memory: DevicePtr) -> Result<()> {
    if memory.0.is_multiple_of(VECTOR) {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} at {:#x}, which is no multiple of {VECTOR}", memory.0)))
}
