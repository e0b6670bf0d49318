//! `all_reduce_rows` among other calls: the same sums as `all_reduce`, in graphs, between other calls, and what goes wrong.

use std::time::{Duration, Instant};

use crate::support::{Told, builder, ranks, slice, zeros};
use half::f16;
use mscclpp::{ErrorKind, gpu::Graph, prelude::*};
use mscclpp_collectives::{Collectives, DataType, Error, Protocol, ReduceOp, Rows, Selection};
use mscclpp_test_support::{LIMIT, Random};

const KERNELS: KernelSource<'static> =
    KernelSource::new("sum_rows.cu", include_str!("../../../../cuda/kernels/sum_rows.cu"));
const COLUMNS: usize = 24;

/// Loaded before collectives are connected: that waits for kernels that run, also for those of ranks on the same device.
fn kernel(gpu: &Gpu, name: &str) -> Kernel {
    Module::load(gpu, &KERNELS).expect("kernels").kernel(name).expect("a kernel")
}

/// Calls a kernel that has no parameters of its own.
fn call(collectives: &Collectives, kernel: &Kernel, rows: &Rows, stream: &Stream) -> Result<(), Error> {
    // SAFETY: the kernels of these tests are made for the rows that the tests give.
    unsafe { collectives.all_reduce_rows(rows, kernel, KernelArgs::new(), stream) }
}

const PROTOCOLS: [(Protocol, bool); 6] = [
    (Protocol::Ll16, false),
    (Protocol::Ll128, false),
    (Protocol::Simple, false),
    (Protocol::Ll16, true),
    (Protocol::Ll128, true),
    (Protocol::Simple, true),
];

fn told(protocol: Protocol, two_steps: bool, blocks: u32) -> Selection {
    Selection { protocol, two_steps, blocks, threads: 32 }
}

/// Many calls of all protocols in a row, of which none is waited for, and an `all_reduce` of the same numbers.
#[test]
fn sums_are_those_of_all_reduce() {
    let seed = Random::new().word();
    ranks(3, |comm, gpu| {
        let tell = Told::new(told(Protocol::Ll16, false, 1));
        let kernel = kernel(gpu, "sum_f16");
        let collectives = builder(comm, gpu).selector(tell.clone()).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let mut random = Random::with_seed(seed ^ collectives.rank() as u64);
        // Of all orders of magnitude, so that another order of the ranks would give other bits.
        let numbers: Vec<f16> =
            (0..13 * COLUMNS).map(|_| f16::from_bits(random.word() as u16 & 0xb3ff)).collect();
        let numbers = slice(gpu, &numbers);
        let results: Vec<_> = (0..24).map(|_| zeros::<f16>(gpu, numbers.len())).collect();
        for (i, result) in results.iter().enumerate() {
            let (protocol, two_steps) = PROTOCOLS[i % 6];
            tell.tell(told(protocol, two_steps, 1 + i as u32 % 3));
            let rows = match i % 12 < 6 {
                true => Rows::new(&numbers, COLUMNS).unwrap().output(result).unwrap(),
                false => {
                    let rows = Rows::at(numbers.ptr(), 13, COLUMNS as u64, DataType::F16).unwrap();
                    rows.output_at(result.ptr(), DataType::F16, false).unwrap()
                }
            };
            assert_eq!(
                collectives.rows_selection(&rows).unwrap(),
                Some(told(protocol, two_steps, 1 + i as u32 % 3))
            );
            call(&collectives, &kernel, &rows, &stream).unwrap();
        }
        let sum = zeros::<f16>(gpu, numbers.len());
        collectives.all_reduce(&numbers, &sum, ReduceOp::Sum, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        let sum = sum.read().unwrap();
        for result in results {
            assert_eq!(result.read().unwrap(), sum);
        }
    });
}

/// A type of 4 bytes, with an output of numbers half as large.
#[test]
fn rows_of_f32() {
    ranks(2, |comm, gpu| {
        let tell = Told::new(told(Protocol::Ll16, false, 1));
        let kernel = kernel(gpu, "sum_f32");
        let collectives = builder(comm, gpu).selector(tell.clone()).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let rank = collectives.rank();
        let numbers: Vec<f32> = (0..5 * 12).map(|i| (i * (1 + rank)) as f32 / 8.0).collect();
        let numbers = slice(gpu, &numbers);
        for (protocol, two_steps) in PROTOCOLS {
            tell.tell(told(protocol, two_steps, 2));
            let (sums, halves) = (zeros::<f32>(gpu, 60), zeros::<f16>(gpu, 60));
            let rows = Rows::new(&numbers, 12).unwrap().output(&sums).unwrap().output(&halves).unwrap();
            call(&collectives, &kernel, &rows, &stream).unwrap();
            collectives.synchronize(&stream).unwrap();
            let expected: Vec<f32> = (0..60).map(|i| i as f32 * 3.0 / 8.0).collect();
            assert_eq!(sums.read().unwrap(), expected);
            assert_eq!(
                halves.read().unwrap(),
                expected.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>()
            );
        }
    });
}

/// Graphs are replayed between other collectives, with fresh data each time.
#[test]
fn replays_take_turns_with_other_calls() {
    const ROUNDS: u64 = 80;
    let seed = Random::new().word();
    ranks(2, |comm, gpu| {
        let tell = Told::new(told(Protocol::Ll16, false, 1));
        let kernel = kernel(gpu, "sum_f16");
        let collectives = builder(comm, gpu).selector(tell.clone()).connect().expect("collectives");
        let (stream, rank) = (gpu.stream().expect("a stream"), collectives.rank());
        let (mut random, mut own) = (Random::with_seed(seed), Random::with_seed(seed ^ 1 ^ rank as u64));
        let (numbers, result) = (zeros::<f16>(gpu, 9 * COLUMNS), zeros::<f16>(gpu, 9 * COLUMNS));
        let word = zeros::<u32>(gpu, 1);
        let rows = Rows::new(&numbers, COLUMNS).unwrap().output(&result).unwrap();
        let graphs: Vec<Graph> = PROTOCOLS
            .iter()
            .map(|(protocol, two_steps)| {
                tell.tell(told(*protocol, *two_steps, 2));
                stream.begin_capture().unwrap();
                for _ in 0..2 {
                    call(&collectives, &kernel, &rows, &stream).unwrap();
                }
                stream.end_capture().unwrap()
            })
            .collect();
        for round in 0..ROUNDS {
            let values = [random.of(0..=100) as f32, random.of(0..=100) as f32];
            numbers.write(&vec![f16::from_f32(values[rank]); numbers.len()]).unwrap();
            if own.of(0..=3) == 0 {
                std::thread::sleep(Duration::from_micros(own.of(0..=2000)));
            }
            if random.of(0..=2) == 0 {
                // A call in which not every rank hears of every other.
                collectives.broadcast(&word, 1, &stream).unwrap();
            }
            // SAFETY: what was captured keeps its memory.
            unsafe { graphs[random.of(0..=3) as usize].launch(&stream).unwrap() };
            collectives.synchronize(&stream).unwrap();
            let sum = f16::from_f32(values[0] + values[1]);
            assert_eq!(result.read().unwrap(), vec![sum; numbers.len()], "round {round}");
        }
    });
}

#[test]
fn a_rank_that_does_not_call_is_not_waited_for_after_an_abort() {
    for (protocol, two_steps) in PROTOCOLS {
        ranks(2, |comm, gpu| {
            let tell = Told::new(told(protocol, two_steps, 2));
            let collectives = builder(comm, gpu).selector(tell).connect().expect("collectives");
            let stream = gpu.stream().expect("a stream");
            if collectives.rank() == 0 {
                let (numbers, result) = (zeros::<f16>(gpu, 4 * COLUMNS), zeros::<f16>(gpu, 4 * COLUMNS));
                let rows = Rows::new(&numbers, COLUMNS).unwrap().output(&result).unwrap();
                call(&collectives, &kernel(gpu, "sum_f16"), &rows, &stream).unwrap();
                let begin = Instant::now();
                collectives.abort("nobody comes");
                let error = collectives.synchronize(&stream).unwrap_err();
                assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
                assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
                assert!(call(&collectives, &kernel(gpu, "sum_f16"), &rows, &stream).is_err());
            }
            // The other stays until then.
            comm.bootstrap().barrier().expect("all ranks");
        });
    }
}

#[test]
fn other_rows_are_found_where_calls_are_compared() {
    ranks(2, |comm, gpu| {
        let kernel = kernel(gpu, "sum_f16");
        let collectives = builder(comm, gpu).check_calls(true).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        let columns = [COLUMNS, 2 * COLUMNS][collectives.rank()];
        let (numbers, result) = (zeros::<f16>(gpu, 4 * COLUMNS), zeros::<f16>(gpu, 4 * COLUMNS));
        let rows = |columns| Rows::new(&numbers, columns).unwrap().output(&result).unwrap();
        call(&collectives, &kernel, &rows(COLUMNS), &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
        // The other rank may have made its call already.
        let called = call(&collectives, &kernel, &rows(columns), &stream);
        let error = called.and_then(|()| collectives.synchronize(&stream)).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
        let words = error.to_string();
        assert!(words.contains("all_reduce_rows of 4 rows of 24 F16"), "{words}");
        assert!(words.contains("all_reduce_rows of 2 rows of 48 F16"), "{words}");
    });
}

#[test]
fn what_cannot_be_is_refused() {
    ranks(1, |comm, gpu| {
        let f16s = |count| zeros::<f16>(gpu, count);
        let numbers = f16s(4 * COLUMNS);
        let refused = |made: Result<Rows, Error>| {
            let error = made.expect_err("an error");
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            error.to_string()
        };
        assert!(refused(Rows::new(&zeros::<i32>(gpu, 64), 16)).contains("rows of I32"));
        assert!(refused(Rows::new(&numbers, 0)).contains("96 numbers in rows of 0"));
        assert!(refused(Rows::new(&numbers, 25)).contains("96 numbers in rows of 25"));
        assert!(refused(Rows::new(&numbers, 4)).contains("rows of 8 bytes"));
        assert!(refused(Rows::new(&f16s(32776), 32776)).contains("rows of 65552 bytes"));
        assert!(refused(Rows::new(&numbers.slice(4..28).unwrap(), 24)).contains("no multiple of 16"));
        let rows = Rows::new(&numbers, COLUMNS).unwrap();
        assert!(refused(rows.clone().output(&f16s(95))).contains("95 numbers of 2 bytes"));
        assert!(refused(rows.clone().output(&zeros::<f32>(gpu, 96))).contains("96 numbers of 4 bytes"));
        assert!(refused(rows.clone().row_output(&zeros::<f32>(gpu, 5))).contains("each of 4 rows"));
        assert!(refused(rows.clone().output(&numbers)).contains("overlaps the rows"));
        let by_address = || Rows::at(numbers.ptr(), 4, COLUMNS as u64, DataType::F16).unwrap();
        assert!(refused(Rows::at(numbers.ptr().add(8), 1, 8, DataType::F16)).contains("no multiple of 16"));
        assert!(refused(Rows::at(numbers.ptr(), 1, 0, DataType::F16)).contains("rows of 0 bytes"));
        assert!(refused(Rows::at(numbers.ptr(), u64::MAX, 8, DataType::F16)).contains("are too many"));
        let elsewhere = numbers.ptr().add(4 * 2 * COLUMNS as u64);
        assert!(refused(by_address().output_at(elsewhere, DataType::F64, false)).contains("of 8 bytes"));
        assert!(
            refused(by_address().output_at(elsewhere.add(8), DataType::F16, true))
                .contains("no multiple of 16")
        );
        let last = numbers.ptr().add(4 * 2 * COLUMNS as u64 - 4);
        assert!(refused(by_address().row_output_at(last)).contains("overlaps the rows"));
        assert!(by_address().row_output_at(elsewhere).is_ok());
        let full = (0..4).try_fold(rows, |rows, _| rows.output(&f16s(96))).unwrap();
        assert!(refused(full.own_output(&f16s(96))).contains("more than 4 outputs"));

        let collectives = builder(comm, gpu).connect().expect("collectives");
        let stream = gpu.stream().expect("a stream");
        // No rows are no call.
        let none = Rows::new(&f16s(0), COLUMNS).unwrap();
        assert_eq!(collectives.rows_selection(&none).unwrap(), None);
        call(&collectives, &kernel(gpu, "sum_f16"), &none, &stream).unwrap();
        collectives.synchronize(&stream).unwrap();
    });
    // Rows that are longer than what a ring holds.
    ranks(2, |comm, gpu| {
        let tell = Told::new(told(Protocol::Simple, true, 1));
        let builder = builder(comm, gpu).max_blocks(1).scratch(1 << 20);
        let collectives = builder.selector(tell).connect().expect("collectives");
        let numbers = zeros::<f16>(gpu, 4 * 32768);
        let rows = Rows::new(&numbers, 32768).unwrap().output(&zeros::<f16>(gpu, 4 * 32768)).unwrap();
        let error = collectives.rows_selection(&rows).unwrap_err().to_string();
        assert!(
            error.contains("rows of 65536 bytes, with results of 65536, do not fit into 1048576 bytes"),
            "{error}"
        );
    });
}
