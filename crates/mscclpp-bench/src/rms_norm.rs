//! `all-reduce-rmsnorm`: an `all_reduce` of f16 between two processes, with the operations that follow it in a transformer.
//! Residual and RMSNorm are in the same launch, or in a separate one after it; the `all_reduce` is measured alone as well.

use std::borrow::Cow;

use half::f16;
use mscclpp::kernels::ALL_REDUCE_RMS_NORM;
use mscclpp_collectives::{Collectives, DeviceSlice, F8E4m3, Kind, ReduceOp, Request, Rows, Selection};

use crate::{
    collectives::{Calls, Numbers},
    data::{Destination, GUARD},
    kernels::RMS_NORM_BENCH,
    prelude::*,
};

#[derive(Args)]
pub(crate) struct Options {
    /// The numbers of rows (tokens); each gives a group of lines [default: 1,4,16,64,256; on simulated devices 1,4,16].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    rows: Vec<u32>,
    /// The number of elements in a row, a multiple of 8 [default: 8192; on simulated devices 1024].
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=8192))]
    hidden: Option<u32>,
    /// The number of calls in a graph.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
    #[command(flatten)]
    measuring: Measuring,
}

const EPSILON: f32 = 1e-5;
/// The scale of fp8 numbers.
const UNIT: f32 = 0.01;

/// One way to get a result.
struct Variant<'a> {
    name: &'static str,
    expected: &'a [u8],
    gives_residual: bool,
    selection: Option<Selection>,
    call: Submit<'a>,
}

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let on_sim = Platform::detect_or_sim()? == Platform::Sim;
    let (default, hidden): (&[u32], u32) =
        if on_sim { (&[1, 4, 16], 1024) } else { (&[1, 4, 16, 64, 256], 8192) };
    let rows = if options.rows.is_empty() { default } else { &options.rows };
    let hidden = options.hidden.unwrap_or(hidden);
    if !hidden.is_multiple_of(8) {
        return Err(format!("--hidden {hidden} is no multiple of 8").into());
    }
    let measuring = &options.measuring;
    let pair = measuring.join(2, joining)?;
    let collectives = Collectives::new(&pair.ranks.comm, &pair.gpu)?;
    table.begin(pair.machine(Transport::CUDA_IPC), 4 * rows.len())?;
    for count in rows {
        let bench = Bench::new(options, &pair, &collectives, *count as usize, hidden as usize)?;
        for variant in bench.variants()? {
            let row = bench.row(table, variant)?;
            table.push(row)?;
        }
    }
    table.note(format!(
        "rows of {hidden} f16; `two-launches` and `fused` give the new residual and the normalised rows, `fused-fp8` these as \
         fp8; sizes are those of the rows"
    ));
    table.note(format!(
        "graphs of {} calls, timed by the device's events; the results compared for each time",
        options.calls
    ));
    pair.ranks.meet()
}

struct Bench<'a> {
    options: &'a Options,
    pair: &'a Pair,
    collectives: &'a Collectives,
    rows: usize,
    hidden: usize,
    /// This rank's rows, the residual, weights, sums.
    given: DeviceSlice<f16>,
    residual: DeviceSlice<f16>,
    weight: DeviceSlice<f16>,
    sums: DeviceSlice<f16>,
    /// The memory of the last result and of the new residual, each between guards.
    result: DeviceBuffer,
    new_residual: DeviceBuffer,
    fused: [Kernel; 2],
    behind: Kernel,
    expected: Expected,
}

/// The results of all ranks, as bytes.
struct Expected {
    sums: Vec<u8>,
    residual: Vec<u8>,
    normalised: Vec<u8>,
    quantised: Vec<u8>,
}

impl<'a> Bench<'a> {
    fn new(
        options: &'a Options,
        pair: &'a Pair,
        collectives: &'a Collectives,
        rows: usize,
        hidden: usize,
    ) -> Result<Self> {
        let (gpu, rank) = (&pair.gpu, pair.ranks.rank);
        let count = rows * hidden;
        // Data that all ranks have in common is made from rank 0's.
        let random = |numbers: usize| -> Result<Vec<Vec<u8>>> {
            let all = pair.ranks.random_bytes_of_each(2 * numbers as u64)?;
            Ok(all.into_iter().map(|bytes| Numbers::F16.moderate(bytes)).collect())
        };
        let (both, residual, weight) = (random(count)?, random(count)?.remove(0), random(hidden)?.remove(0));
        let sums = Numbers::F16.sum(&[&both[0], &both[1]]);
        let expected = Expected::of(sums, &residual, &weight, hidden);
        let slice = |bytes: &[u8]| -> Result<DeviceSlice<f16>> {
            let buffer = gpu.allocate(bytes.len() as u64)?;
            buffer.write(0, bytes)?;
            Ok(DeviceSlice::new(&buffer)?)
        };
        let module = Module::load(gpu, &ALL_REDUCE_RMS_NORM)?;
        Ok(Self {
            options,
            pair,
            collectives,
            rows,
            hidden,
            given: slice(&both[rank])?,
            residual: slice(&residual)?,
            weight: slice(&weight)?,
            sums: slice(&expected.sums)?,
            result: gpu.allocate(2 * count as u64 + 2 * GUARD)?,
            new_residual: gpu.allocate(2 * count as u64 + 2 * GUARD)?,
            fused: [module.kernel("all_reduce_rms_norm_f16")?, module.kernel("all_reduce_rms_norm_f16_fp8")?],
            behind: Module::load(gpu, &RMS_NORM_BENCH)?.kernel("add_rms_norm_f16")?,
            expected,
        })
    }

    fn variants(&self) -> Result<[Variant<'_>; 4]> {
        let Self { collectives, given, result, expected, behind, fused, .. } = self;
        let count = given.len();
        let request = |recv| Request {
            kind: Kind::AllReduce(ReduceOp::Sum),
            send: given.ptr(),
            recv,
            count: count as u64,
            data_type: mscclpp_collectives::DataType::F16,
        };
        let (only, first) = (request(result.ptr().add(GUARD)), request(self.sums.ptr()));
        let selection = collectives.selection(&first)?;
        let (residual, weight, vectors) = (self.residual.ptr(), self.weight.ptr(), (self.hidden / 8) as u32);
        let args = KernelArgs::new().with(self.sums.ptr()).with(residual).with(weight).with(EPSILON);
        let args = args.with(self.new_residual.ptr().add(GUARD)).with(result.ptr().add(GUARD)).with(vectors);
        let config = LaunchConfig::linear(self.rows as u32, vectors.next_multiple_of(32));
        let of_fused = move || KernelArgs::new().with(residual).with(weight).with(EPSILON);
        let new_residual = DeviceSlice::<f16>::at(&self.new_residual, GUARD, count)?;
        let rows = || Rows::new(given, self.hidden)?.output(&new_residual);
        let as_f16 = rows()?.output(&DeviceSlice::<f16>::at(result, GUARD, count)?)?;
        let as_fp8 = rows()?.output(&DeviceSlice::<F8E4m3>::at(result, GUARD, count)?)?;
        // The calls are safe: the memory is kept until the stopwatch, which is dropped first, has waited for them; the kernels
        // have these outputs and parameters.
        Ok([
            Variant {
                name: "all-reduce",
                expected: &expected.sums,
                gives_residual: false,
                selection,
                // SAFETY: as above.
                call: Box::new(move |stream| Ok(unsafe { collectives.enqueue(&[only], stream) }?)),
            },
            Variant {
                name: "two-launches",
                expected: &expected.normalised,
                gives_residual: true,
                selection,
                // SAFETY: as above.
                call: Box::new(move |stream| unsafe {
                    collectives.enqueue(&[first], stream)?;
                    Ok(behind.launch(stream, config, &args)?)
                }),
            },
            Variant {
                name: "fused",
                expected: &expected.normalised,
                gives_residual: true,
                selection: collectives.rows_selection(&as_f16)?,
                call: Box::new(move |stream| {
                    // SAFETY: as above.
                    Ok(unsafe { collectives.all_reduce_rows(&as_f16, &fused[0], of_fused(), stream) }?)
                }),
            },
            Variant {
                name: "fused-fp8",
                expected: &expected.quantised,
                gives_residual: true,
                selection: collectives.rows_selection(&as_fp8)?,
                call: Box::new(move |stream| {
                    let args = of_fused().with(UNIT);
                    // SAFETY: as above.
                    Ok(unsafe { collectives.all_reduce_rows(&as_fp8, &fused[1], args, stream) }?)
                }),
            },
        ])
    }

    fn row(&self, table: &mut Table, variant: Variant<'_>) -> Result<Row> {
        let (pair, measuring) = (self.pair, &self.options.measuring);
        let Variant { name, expected, gives_residual, selection, call } = variant;
        let stopwatch = Stopwatch::new(pair, Vec::new())?;
        let Selection { protocol, blocks, threads, .. } = selection.ok_or("a call of no rows")?;
        let bytes = 2 * (self.rows * self.hidden) as u64;
        let calls = Calls::new(measuring.rounds(pair, bytes), self.options.calls, false);
        // SAFETY: the memory is kept until the stopwatch, which is dropped first, has waited for all calls.
        let launches = unsafe { calls.capture(stopwatch.stream(), call)? };
        let destination = Destination { memory: &self.result, offset: GUARD };
        let mut result = Arrival { stopwatch: &stopwatch, destination }.once(
            launches.count(),
            |stream, _, range| launches.submit(stream, range),
            |_| Cow::Borrowed(expected),
        );
        let residual = Destination { memory: &self.new_residual, offset: GUARD };
        let once = |time: Time| {
            if !gives_residual {
                return result(time);
            }
            residual.poison(bytes)?;
            // A byte of the residual is made wrong, and none of the result, which the first variant has as well.
            let us = result(Time { spoils: false, ..time })?;
            if time.spoils {
                residual.spoil(bytes)?;
            }
            Ok(if residual.holds(&self.expected.residual)? { us } else { None })
        };
        let variant = format!("{name} {} rows, {protocol} {blocks}x{threads}", self.rows);
        let row = Row::new("all-reduce-rmsnorm", variant, (bytes, SizeOf::Bytes), calls.rounds);
        let row = Row { blocks: Some(blocks), ..row };
        table.measure(measuring.repeats, &pair.ranks, Contender::new(row, Box::new(once)))
    }
}

impl Expected {
    /// Computes the results in the order in which the kernels add.
    fn of(sums: Vec<u8>, residual: &[u8], weight: &[u8], hidden: usize) -> Self {
        let numbers = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(2).map(|number| f16::from_le_bytes([number[0], number[1]]).to_f32()).collect()
        };
        let weight = numbers(weight);
        let residual = Numbers::F16.sum(&[&sums, residual]);
        let (mut normalised, mut quantised) = (Vec::new(), Vec::new());
        for row in numbers(&residual).chunks(hidden) {
            let squares: Vec<f32> =
                row.chunks(8).map(|vector| vector.iter().fold(0.0, |sum, x| x.mul_add(*x, sum))).collect();
            let factor = 1.0 / (sum_of_row(&squares) / hidden as f32 + EPSILON).sqrt();
            for (number, weight) in row.iter().zip(&weight) {
                let number = number * factor * weight;
                normalised.extend_from_slice(&f16::from_f32(number).to_le_bytes());
                quantised.push(fp8(number * (1.0 / UNIT)));
            }
        }
        Self { sums, residual, normalised, quantised }
    }
}

/// The sum that `row.sum` of `collective_rows_device.hpp` gives.
fn sum_of_row(vectors: &[f32]) -> f32 {
    let butterfly = |mut values: [f32; 32]| {
        for bit in [16, 8, 4, 2, 1] {
            values = std::array::from_fn(|lane| values[lane] + values[lane ^ bit]);
        }
        values[0]
    };
    let of_warp = |chunk: &[f32]| butterfly(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0.0)));
    let parts: Vec<f32> = vectors.chunks(32).map(of_warp).collect();
    butterfly(std::array::from_fn(|lane| {
        parts.iter().skip(lane).step_by(32).fold(0.0, |sum, part| sum + part)
    }))
}

/// The bits of the nearest number of fp8 (e4m3); of two that are equally near, the even one.
fn fp8(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(448.0);
    // The exponent of `magnitude`, which sets the distance between neighbouring numbers.
    let exponent = (magnitude.to_bits() >> 23).max(127 - 6) as i32 - 127;
    let steps = (magnitude / 2f32.powi(exponent - 3)).round_ties_even() as i32;
    // 8 to 15 steps are a normal number; 16 are a number with the next exponent.
    sign | ((exponent + 6) * 8 + steps) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_has_the_bits_of_its_numbers() {
        for (value, bits) in [
            (0.0, 0),
            (-0.0, 0x80),
            (1.0, 0x38),
            (-1.125, 0xb9),
            (1.0625, 0x38),
            (1.1875, 0x3a),
            (1.97, 0x40),
            (448.0, 0x7e),
            (1e9, 0x7e),
            (0.001_953_125, 1),
            (0.015_625, 8),
            (0.014, 7),
        ] {
            assert_eq!(fp8(value), bits, "{value}");
        }
    }
}
