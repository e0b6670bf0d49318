//! An `all_reduce` of a transformer with what follows it in the same launch: the residual is added, and the sum normalised
//! (RMSNorm), once to f16 and once to fp8 with a scale for each row. The book's page "Collectives" leads through it.

use std::{error::Error, sync::Arc, thread};

use half::f16;
use mscclpp::{kernels::ALL_REDUCE_RMS_NORM, prelude::*};
use mscclpp_collectives::{Collectives, DeviceSlice, F8E4m3, Rows};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

const RANKS: usize = 4;
const ROWS: usize = 5;
const COLUMNS: usize = 1024;
const EPSILON: f32 = 1e-5;

/// Some number between -1 and 1.
fn number(i: usize) -> f16 {
    f16::from_f32((i * 7919 % 2001) as f32 / 1000.0 - 1.0)
}

fn numbers(first: usize, count: usize) -> Vec<f16> {
    (first..first + count).map(number).collect()
}

fn rank(bootstrap: LocalBootstrap, platform: Platform) -> Outcome {
    let rank = bootstrap.rank();
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(rank % platform.device_count()?)?;
    // Kernels first: to load them may wait for those of ranks on the same device, which wait for this rank.
    let module = Module::load(&gpu, &ALL_REDUCE_RMS_NORM)?;
    let kernel = module.kernel("all_reduce_rms_norm_f16")?;
    let collectives = Collectives::builder(&comm, &gpu).max_blocks(16).connect()?;
    let stream = gpu.stream()?;

    let count = ROWS * COLUMNS;
    let allocate = |numbers: usize| DeviceSlice::<f16>::new(&gpu.allocate(2 * numbers as u64)?);
    let (partial, residual, normalised) = (allocate(count)?, allocate(count)?, allocate(count)?);
    let weight = allocate(COLUMNS)?;
    partial.write(&numbers(rank * count, count))?;
    residual.write(&numbers(99, count))?;
    weight.write(&numbers(7, COLUMNS))?;

    // ANCHOR: call
    let rows = Rows::new(&partial, COLUMNS)?.output(&residual)?.output(&normalised)?;
    let args = KernelArgs::new().with(residual.buffer()).with(weight.buffer()).with(EPSILON);
    // SAFETY: the kernel is made for these outputs; its other parameters are the residual, the weights and epsilon.
    unsafe { collectives.all_reduce_rows(&rows, &kernel, args, &stream)? };
    collectives.synchronize(&stream)?;
    // ANCHOR_END: call
    let expected = expected();
    close(&residual.read()?, &expected.residual, 0.01);
    close(&normalised.read()?, &expected.normalised, 0.01);

    let quantised = DeviceSlice::<F8E4m3>::new(&gpu.allocate(count as u64)?)?;
    let units = DeviceSlice::<f32>::new(&gpu.allocate(4 * ROWS as u64)?)?;
    let kernel = module.kernel("all_reduce_rms_norm_f16_fp8_of_rows")?;
    let rows = Rows::new(&partial, COLUMNS)?.output(&residual)?.output(&quantised)?.row_output(&units)?;
    residual.write(&numbers(99, count))?;
    let args = KernelArgs::new().with(residual.buffer()).with(weight.buffer()).with(EPSILON);
    // SAFETY: as above; this one has an output more, of a number for each row.
    unsafe { collectives.all_reduce_rows(&rows, &kernel, args, &stream)? };
    collectives.synchronize(&stream)?;
    let units = units.read()?;
    let values =
        quantised.read()?.into_iter().enumerate().map(|(i, number)| value(number) * units[i / COLUMNS]);
    // fp8 has three bits of fraction.
    close(&values.map(f16::from_f32).collect::<Vec<_>>(), &expected.normalised, 0.07);

    comm.bootstrap().barrier()?; // before this rank's memory goes
    Ok(())
}

fn value(number: F8E4m3) -> f32 {
    let (exponent, fraction) = (i32::from(number.0 >> 3 & 15), f32::from(number.0 & 7) / 8.0);
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-6),
        _ => (1.0 + fraction) * 2f32.powi(exponent - 7),
    };
    if number.0 & 0x80 == 0 { magnitude } else { -magnitude }
}

struct Expected {
    residual: Vec<f32>,
    normalised: Vec<f32>,
}

/// The same on the host, as the formula has it.
fn expected() -> Expected {
    let of_row = |i: usize| i / COLUMNS * COLUMNS..(i / COLUMNS + 1) * COLUMNS;
    let given = |rank: usize, i: usize| number(rank * ROWS * COLUMNS + i).to_f32();
    let residual: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|i| (0..RANKS).map(|rank| given(rank, i)).sum::<f32>() + number(99 + i).to_f32())
        .collect();
    let normalised = residual.iter().enumerate().map(|(i, x)| {
        let mean = residual[of_row(i)].iter().map(|y| y * y).sum::<f32>() / COLUMNS as f32;
        x / (mean + EPSILON).sqrt() * number(7 + i % COLUMNS).to_f32()
    });
    Expected { normalised: normalised.collect(), residual }
}

fn close(found: &[f16], expected: &[f32], error: f32) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found.to_f32() - expected).abs();
        assert!(difference <= error * expected.abs().max(1.0), "number {i}: {found} instead of {expected}");
    }
}

fn main() -> Outcome {
    let platform = Platform::detect_or_sim()?;
    let ranks = LocalBootstrap::group(RANKS).into_iter();
    let threads = ranks.map(|bootstrap| thread::spawn(move || rank(bootstrap, platform)));
    threads.collect::<Vec<_>>().into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))?;
    println!("{RANKS} ranks on {platform}: Succeed!");
    Ok(())
}
