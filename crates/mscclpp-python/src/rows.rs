//! The call `all_reduce_rows`: kernels of Python programs take over each row of a sum.

use mscclpp::{DevicePtr, Kernel, KernelArgs, Stream};
use mscclpp_collectives::{Collectives, DataType, Error, Rows};
use pyo3::prelude::*;

use crate::{data_types::of_collectives, raw::Bytes};

/// An argument of the kernel: the address and size of memory, or the bytes of anything else.
#[derive(FromPyObject)]
pub(crate) enum Argument {
    Memory((u64, u64)),
    Value(Bytes),
}

/// The address of the first row, the number of rows, the numbers in each, and their type.
pub(crate) type GivenRows = (u64, u64, u64, String);

/// The address of an output, its type (none for 4 bytes for each row), and whether it stays on its rank.
pub(crate) type GivenOutput = (u64, Option<String>, bool);

/// The arguments of one call.
pub(crate) struct RowsCall {
    args: Vec<Argument>,
    rows: (DevicePtr, u64, u64, DataType),
    outputs: Vec<(DevicePtr, Option<DataType>, bool)>,
}

impl RowsCall {
    pub(crate) fn new(
        args: Vec<Argument>,
        (address, count, columns, of): GivenRows,
        outputs: Vec<GivenOutput>,
    ) -> PyResult<Self> {
        let output = |(address, of, is_own): GivenOutput| {
            Ok((DevicePtr(address), of.map(|of| of_collectives(&of)).transpose()?, is_own))
        };
        Ok(Self {
            args,
            rows: (DevicePtr(address), count, columns, of_collectives(&of)?),
            outputs: outputs.into_iter().map(output).collect::<PyResult<_>>()?,
        })
    }

    /// Puts the call into the stream. `place` returns the address that the call uses in place of an address of the
    /// program, for a number of bytes.
    ///
    /// # Safety
    /// The requirements of [`Collectives::all_reduce_rows`], for the memory that `place` returns.
    pub(crate) unsafe fn enqueue(
        &self,
        collectives: &Collectives,
        kernel: &Kernel,
        stream: &Stream,
        mut place: impl FnMut(DevicePtr, u64) -> Result<DevicePtr, Error>,
    ) -> Result<(), Error> {
        let (address, count, columns, of) = self.rows;
        let mut rows = Rows::at(place(address, count * columns * of.size())?, count, columns, of)?;
        for (output, (_, bytes)) in self.outputs.iter().zip(self.taken()) {
            let (address, of, is_own) = *output;
            let there = place(address, bytes)?;
            rows = match of {
                Some(of) => rows.output_at(there, of, is_own)?,
                None => rows.row_output_at(there)?,
            };
        }
        let mut args = KernelArgs::new();
        for argument in &self.args {
            args = match argument {
                Argument::Value(value) => args.with_bytes(&value.0),
                Argument::Memory((address, bytes)) => args.with(place(DevicePtr(*address), *bytes)?),
            };
        }
        // SAFETY: the caller's promise.
        unsafe { collectives.all_reduce_rows(&rows, kernel, args, stream) }
    }

    /// Returns the addresses of the outputs, and how many bytes each has.
    pub(crate) fn taken(&self) -> Vec<(DevicePtr, u64)> {
        let (_, count, columns, _) = self.rows;
        let bytes = |of: Option<DataType>| of.map_or(4, |of| columns * of.size()) * count;
        self.outputs.iter().map(|(address, of, _)| (*address, bytes(*of))).collect()
    }
}
