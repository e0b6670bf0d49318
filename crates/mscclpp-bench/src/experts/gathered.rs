//! The collectives that do the work of dispatch and combine without knowing about experts.

use half::bf16;
use mscclpp_collectives::{DataType, DeviceSlice, Kind, ReduceOp, Request};

use super::{Bench, Shape};
use crate::prelude::*;

/// The collectives that do the same: all tokens go to all ranks, and every rank has a row for each.
pub(super) struct Gathered<'a> {
    bench: &'a Bench<'a>,
    given: [DeviceSlice<u8>; 3],
    all: [DeviceSlice<u8>; 3],
    made: DeviceSlice<bf16>,
    sums: DeviceSlice<bf16>,
}

impl<'a> Gathered<'a> {
    pub(super) fn new(bench: &'a Bench<'a>) -> Result<Self> {
        let Shape { ranks, hidden, top_k, .. } = bench.shape;
        let row = if bench.options.bf16 { 2 * hidden } else { hidden + 4 * hidden.div_ceil(128) };
        let slice = |bytes: usize| -> Result<DeviceSlice<u8>> {
            Ok(DeviceSlice::new(&bench.pair.gpu.allocate(bytes as u64)?)?)
        };
        let sizes = [row, 4 * top_k, 4 * top_k].map(|bytes| bytes * bench.tokens.count);
        let [rows, weights, ids] = sizes.map(slice);
        let [all_rows, all_weights, all_ids] = sizes.map(|bytes| slice(bytes * ranks));
        let numbers = |count: usize| -> Result<DeviceSlice<bf16>> {
            Ok(DeviceSlice::new(&bench.pair.gpu.allocate(2 * count as u64)?)?)
        };
        Ok(Self {
            bench,
            given: [rows?, weights?, ids?],
            all: [all_rows?, all_weights?, all_ids?],
            made: numbers(ranks * bench.tokens.count * hidden)?,
            sums: numbers(bench.tokens.count * hidden)?,
        })
    }

    /// The all_gathers.
    pub(super) fn gathers(&self) -> Vec<Request<'static>> {
        let request = |(given, all): (&DeviceSlice<u8>, &DeviceSlice<u8>)| Request {
            kind: Kind::AllGather,
            data_type: DataType::U8,
            count: given.len() as u64,
            send: given.ptr(),
            recv: all.ptr(),
        };
        self.given.iter().zip(&self.all).map(request).collect()
    }

    /// The reduce_scatter.
    pub(super) fn scatters(&self) -> Request<'static> {
        Request {
            kind: Kind::ReduceScatter(ReduceOp::Sum),
            data_type: DataType::Bf16,
            count: self.sums.len() as u64,
            send: self.made.ptr(),
            recv: self.sums.ptr(),
        }
    }

    /// Makes calls by this library.
    pub(super) fn put(&self, requests: &[Request<'static>], stream: &Stream) -> Result<()> {
        // SAFETY: the memory is kept as long as the graph.
        unsafe { self.bench.collectives.enqueue(requests, stream)? };
        Ok(())
    }
}
