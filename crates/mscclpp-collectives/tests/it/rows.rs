//! `all_reduce_rows` with the kernels of the example: residual and RMSNorm give bit for bit what the host computes in
//! the same order, by all protocols, and touch nothing else.

use std::sync::Mutex;

use crate::support::{Told, builder, ranks};
use half::{bf16, f16};
use mscclpp::{kernels::ALL_REDUCE_RMS_NORM, prelude::*};
use mscclpp_collectives::{DeviceSlice, Element, F8E4m3, Protocol, Rows, Selection};
use mscclpp_test_support::{Random, f8::nearest};

const EPSILON: f32 = 1e-5;
/// Numbers before and behind an output.
const MARGIN: usize = 16;
const MOST_ROWS: usize = 23;
const MOST_COLUMNS: usize = 1600;

/// The form of normalised numbers in the result.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    SameType,
    Fp8 { unit: f32 },
    Fp8OfRows,
}

/// A type of rows.
trait Number: Element + PartialEq + std::fmt::Debug {
    const NAME: &'static str;
    const ZERO: Self;
    fn of(value: f32) -> Self;
    fn value(self) -> f32;
    fn of_bits(bits: u16) -> Self;
}

macro_rules! number {
    ($type:ident) => {
        impl Number for $type {
            const NAME: &'static str = stringify!($type);
            const ZERO: Self = $type::ZERO;
            fn of(value: f32) -> Self {
                $type::from_f32(value)
            }
            fn value(self) -> f32 {
                self.to_f32()
            }
            fn of_bits(bits: u16) -> Self {
                $type::from_bits(bits)
            }
        }
    };
}
number!(f16);
number!(bf16);

#[derive(Debug, Clone)]
struct Case {
    rows: usize,
    columns: usize,
    form: Form,
    /// Whether the residual stays on its rank, and whether the new one takes the place of the old.
    own_residual: bool,
    in_place: bool,
    selection: Selection,
    /// Whether numbers may have any bits, also those of NaN.
    any_bits: bool,
    seed: u64,
}

impl Case {
    /// The n-th of many: protocols and forms take turns, so that all pairs come about; the rest is random.
    fn new(n: usize, random: &mut Random) -> Self {
        let protocol = [Protocol::Ll16, Protocol::Ll128, Protocol::Simple][n % 3];
        let two_steps = n / 3 % 2 == 1;
        let unit = random.of(1..=400) as f32 / 1000.0;
        Self {
            rows: random.of(0..=MOST_ROWS as u64) as usize,
            columns: 8 * random.of(1..=if n.is_multiple_of(5) { MOST_COLUMNS as u64 / 8 } else { 40 })
                as usize,
            form: [Form::SameType, Form::Fp8 { unit }, Form::Fp8OfRows][n / 6 % 3],
            own_residual: random.of(0..=1) == 1,
            in_place: random.of(0..=1) == 1,
            selection: Selection {
                protocol,
                two_steps,
                blocks: random.of(1..=3) as u32,
                threads: 32 * random.of(1..=3) as u32,
            },
            any_bits: n.is_multiple_of(7),
            seed: random.word(),
        }
    }

    fn numbers<T: Number>(&self, what: u64, count: usize) -> Vec<T> {
        let mut random = Random::with_seed(self.seed ^ what);
        let number = || match self.any_bits {
            true => T::of_bits(random.word() as u16),
            false => T::of(random.of(0..=4000) as f32 / 512.0 - 3.9),
        };
        std::iter::repeat_with(number).take(count).collect()
    }
}

/// The result of a call, of all rows.
struct Expected<T> {
    residual: Vec<T>,
    normalised: Vec<f32>,
    units: Vec<f32>,
}

/// `row.sum` of the header, of the values of a row's vectors.
fn sum_of_row(vectors: &[f32]) -> f32 {
    fn butterfly(mut values: [f32; 32]) -> f32 {
        for bit in [16, 8, 4, 2, 1] {
            values = std::array::from_fn(|lane| values[lane] + values[lane ^ bit]);
        }
        values[0]
    }
    let parts: Vec<f32> = vectors
        .chunks(32)
        .map(|chunk| butterfly(std::array::from_fn(|lane| chunk.get(lane).copied().unwrap_or(0.0))))
        .collect();
    butterfly(std::array::from_fn(|lane| {
        parts.iter().skip(lane).step_by(32).fold(0.0, |sum, part| sum + part)
    }))
}

fn expected<T: Number>(case: &Case, given: &[Vec<T>], residual: &[T], weight: &[T]) -> Expected<T> {
    let sums = (0..residual.len()).map(|i| {
        let sum = given.iter().map(|numbers| numbers[i].value()).reduce(|a, b| a + b).expect("a rank");
        T::of(T::of(sum).value() + residual[i].value())
    });
    let residual: Vec<T> = sums.collect();
    let (mut normalised, mut units) = (Vec::new(), Vec::new());
    for row in residual.chunks(case.columns) {
        let square =
            |vector: &[T]| vector.iter().fold(0.0, |sum, number| number.value().mul_add(number.value(), sum));
        let squares = sum_of_row(&row.chunks(8).map(square).collect::<Vec<f32>>());
        let factor = 1.0 / (squares / case.columns as f32 + EPSILON).sqrt();
        let numbers: Vec<f32> =
            row.iter().zip(weight).map(|(number, weight)| number.value() * factor * weight.value()).collect();
        let largest =
            numbers.iter().fold(0.0, |most, number| if number.abs() > most { number.abs() } else { most });
        units.push(if largest > 0.0 { largest / 448.0 } else { 1.0 });
        normalised.extend(numbers);
    }
    Expected { residual, normalised, units }
}

/// The memory that all cases use, one after the other: on GPUs, to allocate it anew takes longer than all else.
struct Memory([DeviceBuffer; 7]);

impl Memory {
    fn new(gpu: &Gpu) -> Self {
        let most = (MOST_ROWS * MOST_COLUMNS + 2 * MARGIN) * 4;
        Self(std::array::from_fn(|_| gpu.allocate(most as u64).expect("memory")))
    }

    /// A slice of the n-th buffer with a margin on both sides, all of it `fill`.
    fn margined<T: Element>(&self, n: usize, count: usize, fill: T) -> DeviceSlice<T> {
        let all = DeviceSlice::<T>::new(&self.0[n]).expect("a slice");
        let all = all.slice(0..count + 2 * MARGIN).expect("a slice");
        all.write(&vec![fill; count + 2 * MARGIN]).expect("a copy");
        all
    }
}

fn inner<T: Element>(all: &DeviceSlice<T>) -> DeviceSlice<T> {
    all.slice(MARGIN..all.len() - MARGIN).expect("a slice")
}

/// Compares what is there with what should be in the rows `mine`, and `fill` elsewhere.
fn compare<T: Element + std::fmt::Debug>(
    what: &str,
    case: &Case,
    all: &DeviceSlice<T>,
    of_row: usize,
    expected: impl Fn(usize) -> Option<T>,
    same: impl Fn(T, T) -> bool,
    fill: T,
) {
    let found = all.read().expect("a copy");
    for (i, found) in found.iter().enumerate() {
        let place = i.checked_sub(MARGIN).filter(|i| i / of_row < case.rows);
        let expected = place.and_then(&expected).unwrap_or(fill);
        assert!(
            same(*found, expected),
            "{what}, number {place:?} with {of_row} in a row: {found:?} instead of {expected:?}; {case:?}"
        );
    }
}

/// The kernels, loaded once for each device: that takes seconds.
fn kernels_on(gpu: &Gpu) -> Module {
    static LOADED: Mutex<Vec<(usize, Module)>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().expect("no test has panicked here");
    if let Some((_, module)) = loaded.iter().find(|(id, _)| *id == gpu.id()) {
        return module.clone();
    }
    let module = Module::load(gpu, &ALL_REDUCE_RMS_NORM).expect("kernels");
    loaded.push((gpu.id(), module.clone()));
    module
}

fn check<T: Number>(n_ranks: usize, cases: usize) {
    let seed = Random::new().word();
    ranks(n_ranks, |comm, gpu| {
        let told =
            Told::new(Selection { protocol: Protocol::Simple, two_steps: false, blocks: 1, threads: 32 });
        // First: to load kernels waits for those that run, also for those of ranks on the same device.
        let module = kernels_on(gpu);
        let kernel =
            |form: &str| module.kernel(&format!("all_reduce_rms_norm_{}{form}", T::NAME)).expect("a kernel");
        let kernels = [kernel(""), kernel("_fp8"), kernel("_fp8_of_rows")];
        let collectives = builder(comm, gpu).selector(told.clone()).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let rank = collectives.rank();
        let memory = Memory::new(gpu);
        let mut random = Random::with_seed(seed);
        for n in 0..cases {
            let case = Case::new(n, &mut random);
            told.tell(case.selection);
            let count = case.rows * case.columns;
            let given: Vec<Vec<T>> = (0..n_ranks).map(|r| case.numbers(r as u64, count)).collect();
            let (old, weight): (Vec<T>, Vec<T>) = (case.numbers(100, count), case.numbers(101, case.columns));
            let expected = expected(&case, &given, &old, &weight);

            let numbers = memory.margined(0, count, T::ZERO);
            inner(&numbers).write(&given[rank]).expect("a copy");
            let weights = memory.margined(1, case.columns, T::ZERO);
            inner(&weights).write(&weight).expect("a copy");
            let old_residual = memory.margined(2, count, T::ZERO);
            inner(&old_residual).write(&old).expect("a copy");
            let residual =
                if case.in_place { old_residual.clone() } else { memory.margined(3, count, T::ZERO) };
            let normalised = memory.margined(4, count, T::of(7.0));
            let quantised = memory.margined(5, count, F8E4m3(0x5a));
            let units = memory.margined(6, case.rows, -1.0f32);

            let rows = Rows::new(&inner(&numbers), case.columns).expect("rows");
            let rows = match case.own_residual {
                true => rows.own_output(&inner(&residual)),
                false => rows.output(&inner(&residual)),
            };
            let rows = rows.expect("an output");
            let rows = match case.form {
                Form::SameType => rows.output(&inner(&normalised)).expect("an output"),
                Form::Fp8 { .. } => rows.output(&inner(&quantised)).expect("an output"),
                Form::Fp8OfRows => {
                    let rows = rows.output(&inner(&quantised)).expect("an output");
                    rows.row_output(&inner(&units)).expect("an output")
                }
            };
            let args =
                KernelArgs::new().with(inner(&old_residual).ptr()).with(inner(&weights).ptr()).with(EPSILON);
            let (kernel, args) = match case.form {
                Form::SameType => (&kernels[0], args),
                Form::Fp8 { unit } => (&kernels[1], args.with(unit)),
                Form::Fp8OfRows => (&kernels[2], args),
            };
            let selection = collectives.rows_selection(&rows).expect("a selection");
            // SAFETY: these are the kernel's other parameters, whose memory lives until the stream is waited for.
            unsafe { collectives.all_reduce_rows(&rows, kernel, args, &stream).expect("a call") };
            collectives.synchronize(&stream).expect("a complete call");

            let shared_out = selection.is_some_and(|selection| selection.two_steps);
            assert!(!shared_out || case.selection.two_steps && case.rows >= n_ranks);
            let stays = |row: usize| case.own_residual && shared_out && row % n_ranks != rank;
            let residual_of = |i: usize| match stays(i / case.columns) {
                true => Some(if case.in_place { old[i] } else { T::ZERO }),
                false => Some(expected.residual[i]),
            };
            let same = |a: T, b: T| a == b || a.value().is_nan() && b.value().is_nan();
            compare("residual", &case, &residual, case.columns, residual_of, same, T::ZERO);
            let is_same_type = case.form == Form::SameType;
            let normal = |i| is_same_type.then(|| T::of(expected.normalised[i]));
            compare("normalised", &case, &normalised, case.columns, normal, same, T::of(7.0));
            let quantum = |i: usize| {
                let unit = match case.form {
                    Form::SameType => return None,
                    Form::Fp8 { unit } => unit,
                    Form::Fp8OfRows => expected.units[i / case.columns],
                };
                Some(F8E4m3(nearest(expected.normalised[i] * (1.0 / unit), 3)))
            };
            compare("quantised", &case, &quantised, case.columns, quantum, |a, b| a == b, F8E4m3(0x5a));
            let unit = |i: usize| (case.form == Form::Fp8OfRows).then(|| expected.units[i]);
            compare("units", &case, &units, 1, unit, |a, b| a == b, -1.0f32);
            let unchanged = |i: usize| Some(given[rank][i]);
            compare("rows", &case, &numbers, case.columns, unchanged, same, T::ZERO);
        }
    });
}

#[test]
fn one_rank() {
    check::<f16>(1, 60);
    check::<bf16>(1, 60);
}

#[test]
fn two_ranks() {
    check::<f16>(2, 72);
    check::<bf16>(2, 72);
}

#[test]
fn three_ranks() {
    check::<f16>(3, 72);
    check::<bf16>(3, 72);
}

#[test]
fn eight_ranks() {
    check::<f16>(8, 36);
    check::<bf16>(8, 36);
}
