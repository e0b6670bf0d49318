//! Every collective among ranks that are threads of one process. As in nccl-tests, each runs in place and not in place, with
//! every root, and for sizes around every limit.

use std::{ffi::c_int, ptr};

use crate::support::nccl::{Handle, INVALID_ARGUMENT, Numbers, Rank, nccl, ranks};

const N: usize = 3;
const F32: c_int = 7;
const I64: c_int = 4;
const SUM: c_int = 0;
const COUNTS: [usize; 5] = [0, 1, 7, 1000, 70_000];

/// A number that is unique for each rank and index.
fn number(rank: usize, i: usize) -> i64 {
    (rank as i64 + 1) * 1_000_000 + i as i64
}

fn of(rank: usize, range: std::ops::Range<usize>) -> Vec<i64> {
    range.map(|i| number(rank, i)).collect()
}

fn sum(range: std::ops::Range<usize>) -> Vec<i64> {
    range.map(|i| (0..N).map(|rank| number(rank, i)).sum()).collect()
}

/// Runs `check` for each count, both in place and not.
fn each(check: impl Fn(&Rank, usize, bool) + Sync) {
    ranks(N, |rank| {
        for count in COUNTS {
            for in_place in [false, true] {
                check(&rank, count, in_place);
            }
        }
        rank.destroy();
    });
}

#[test]
fn all_reduce() {
    each(|rank, count, in_place| {
        let send = Numbers::new(&of(rank.rank, 0..count));
        let other = Numbers::new(&vec![0; count]);
        let recv = if in_place { &send } else { &other };
        let nccl = nccl();
        // SAFETY: the memory has the size that the call names, and lives until the stream is synchronised: in all tests of this
        // file.
        nccl.ok(unsafe {
            (nccl.ncclAllReduce)(send.ptr(), recv.ptr(), count, I64, SUM, rank.comm, rank.stream.0)
        });
        rank.stream.synchronize();
        assert_eq!(recv.read(), sum(0..count));
    });
}

#[test]
fn reduce() {
    each(|rank, count, in_place| {
        for root in 0..N {
            let send = Numbers::new(&of(rank.rank, 0..count));
            let other = Numbers::new(&vec![0; count]);
            let recv = if in_place { &send } else { &other };
            // Only the root has memory for the result.
            let to = if rank.rank == root { recv.ptr() } else { ptr::null_mut() };
            let nccl = nccl();
            // SAFETY: the memory lives until the stream is synchronised.
            nccl.ok(unsafe {
                (nccl.ncclReduce)(send.ptr(), to, count, I64, SUM, root as c_int, rank.comm, rank.stream.0)
            });
            rank.stream.synchronize();
            if rank.rank == root {
                assert_eq!(recv.read(), sum(0..count));
            }
        }
    });
}

#[test]
fn reduce_scatter() {
    each(|rank, count, in_place| {
        let send = Numbers::new(&of(rank.rank, 0..N * count));
        let other = Numbers::new(&vec![0; count]);
        let to = if in_place { send.at(rank.rank * count) } else { other.ptr() };
        let nccl = nccl();
        // SAFETY: the memory lives until the stream is synchronised.
        nccl.ok(unsafe {
            (nccl.ncclReduceScatter)(send.ptr(), to, count, I64, SUM, rank.comm, rank.stream.0)
        });
        rank.stream.synchronize();
        let own = rank.rank * count..(rank.rank + 1) * count;
        let got = if in_place { send.read()[own.clone()].to_vec() } else { other.read() };
        assert_eq!(got, sum(own));
    });
}

#[test]
fn all_gather() {
    each(|rank, count, in_place| {
        let own = Numbers::new(&of(rank.rank, 0..count));
        let mut place = vec![0; N * count];
        place[rank.rank * count..(rank.rank + 1) * count].copy_from_slice(&own.read());
        let recv = Numbers::new(&place);
        let from = if in_place { recv.at(rank.rank * count) } else { own.ptr() };
        let nccl = nccl();
        // SAFETY: the memory lives until the stream is synchronised.
        nccl.ok(unsafe { (nccl.ncclAllGather)(from, recv.ptr(), count, I64, rank.comm, rank.stream.0) });
        rank.stream.synchronize();
        assert_eq!(recv.read(), (0..N).flat_map(|r| of(r, 0..count)).collect::<Vec<_>>());
    });
}

#[test]
fn all_to_all() {
    each(|rank, count, in_place| {
        let send = Numbers::new(&of(rank.rank, 0..N * count));
        let other = Numbers::new(&vec![0; N * count]);
        let recv = if in_place { &send } else { &other };
        let nccl = nccl();
        // SAFETY: the memory lives until the stream is synchronised.
        nccl.ok(unsafe { (nccl.ncclAlltoAll)(send.ptr(), recv.ptr(), count, I64, rank.comm, rank.stream.0) });
        rank.stream.synchronize();
        let own = rank.rank * count..(rank.rank + 1) * count;
        assert_eq!(recv.read(), (0..N).flat_map(|r| of(r, own.clone())).collect::<Vec<_>>());
    });
}

#[test]
fn broadcast_and_bcast() {
    each(|rank, count, in_place| {
        for root in 0..N {
            let send = Numbers::new(&of(rank.rank, 0..count));
            let other = Numbers::new(&vec![0; count]);
            let recv = if in_place { &send } else { &other };
            let nccl = nccl();
            let r = root as c_int;
            // SAFETY: the memory lives until the stream is synchronised.
            nccl.ok(unsafe {
                if in_place {
                    (nccl.ncclBcast)(recv.ptr(), count, I64, r, rank.comm, rank.stream.0)
                } else {
                    (nccl.ncclBroadcast)(send.ptr(), recv.ptr(), count, I64, r, rank.comm, rank.stream.0)
                }
            });
            rank.stream.synchronize();
            assert_eq!(recv.read(), of(root, 0..count));
        }
    });
}

#[test]
fn gather_and_scatter() {
    each(|rank, count, in_place| {
        for root in 0..N {
            let (is_root, r, nccl) = (rank.rank == root, root as c_int, nccl());
            let own = Numbers::new(&of(rank.rank, 0..count));
            let mut place = vec![0; N * count];
            place[rank.rank * count..(rank.rank + 1) * count].copy_from_slice(&own.read());
            let all = Numbers::new(&place);
            let from = if in_place && is_root { all.at(root * count) } else { own.ptr() };
            let to = if is_root { all.ptr() } else { ptr::null_mut() };
            // SAFETY: the memory lives until the stream is synchronised.
            nccl.ok(unsafe { (nccl.ncclGather)(from, to, count, I64, r, rank.comm, rank.stream.0) });
            rank.stream.synchronize();
            if is_root {
                assert_eq!(all.read(), (0..N).flat_map(|r| of(r, 0..count)).collect::<Vec<_>>());
            }
            // Scatter sends the numbers back.
            let back = Numbers::new(&vec![0; count]);
            let from = if is_root { all.ptr() } else { ptr::null_mut() };
            let to = if in_place && is_root { all.at(root * count) } else { back.ptr() };
            // SAFETY: the memory lives until the stream is synchronised.
            nccl.ok(unsafe { (nccl.ncclScatter)(from, to, count, I64, r, rank.comm, rank.stream.0) });
            rank.stream.synchronize();
            let got = if in_place && is_root {
                all.read()[root * count..(root + 1) * count].to_vec()
            } else {
                back.read()
            };
            assert_eq!(got, of(rank.rank, 0..count));
        }
    });
}

/// All-reduces one number, given by its bytes, and returns the bytes of the result.
fn reduced(rank: &Rank, data_type: c_int, op: c_int, bytes: &[u8]) -> Vec<u8> {
    let numbers = Numbers::new(bytes);
    let nccl = nccl();
    // SAFETY: the memory has one number of the type, and lives until the stream is synchronised.
    nccl.ok(unsafe {
        (nccl.pncclAllReduce)(numbers.ptr(), numbers.ptr(), 1, data_type, op, rank.comm, rank.stream.0)
    });
    rank.stream.synchronize();
    numbers.read()
}

/// The values of `ncclDataType_t`, with the bytes of the numbers 0 to 6 in each type.
fn types() -> Vec<(c_int, [Vec<u8>; 7])> {
    let whole = |bytes: usize| std::array::from_fn(|n| (n as u64).to_le_bytes()[..bytes].to_vec());
    let bits = |bits: [u16; 7], bytes: usize| bits.map(|bits| bits.to_le_bytes()[..bytes].to_vec());
    vec![
        (0, whole(1)),
        (1, whole(1)),
        (2, whole(4)),
        (3, whole(4)),
        (4, whole(8)),
        (5, whole(8)),
        (6, bits([0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600], 2)),
        (7, std::array::from_fn(|n| (n as f32).to_le_bytes().to_vec())),
        (8, std::array::from_fn(|n| (n as f64).to_le_bytes().to_vec())),
        (9, bits([0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0], 2)),
        (10, bits([0, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c], 1)),
        (11, bits([0, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46], 1)),
    ]
}

#[test]
fn every_type_and_operation() {
    ranks(N, |rank| {
        for (data_type, numbers) in types() {
            for (op, result) in [(0, 6), (1, 6), (2, 3), (3, 1), (4, 2)] {
                let got = reduced(&rank, data_type, op, &numbers[rank.rank + 1]);
                assert_eq!(got, numbers[result], "type {data_type}, operation {op}");
            }
        }
        rank.destroy();
    });
}

#[test]
fn averages_of_integers_wrap_and_cut_towards_zero() {
    ranks(N, |rank| {
        let average = |data_type, numbers: [i64; N], expected: i64, bytes: usize| {
            let got = reduced(&rank, data_type, 4, &numbers[rank.rank].to_le_bytes()[..bytes]);
            assert_eq!(got, expected.to_le_bytes()[..bytes], "type {data_type}, {numbers:?}");
        };
        for (signed, unsigned, bytes) in [(0, 1, 1), (2, 3, 4), (4, 5, 8)] {
            let (most, least) = (i64::MAX >> (64 - 8 * bytes), i64::MIN >> (64 - 8 * bytes));
            average(signed, [most, 3, 0], (least + 2) / 3, bytes);
            average(signed, [least, -1, 0], most / 3, bytes);
            average(signed, [-1, -2, -2], -1, bytes);
            // As an unsigned number -1 is the largest; adding 5 wraps around to 4.
            average(unsigned, [-1, 5, 0], 1, bytes);
        }
        rank.destroy();
    });
}

#[test]
fn sums_of_numbers_that_are_multiplied_first() {
    ranks(N, |rank| {
        let nccl = nccl();
        for (data_type, numbers) in types() {
            // The ranks multiply 1 by 1, 2 and 3.
            let mut on_host = numbers[rank.rank + 1].clone();
            let on_device = Numbers::new(&on_host);
            for (factor, residence) in [(on_device.ptr(), 0), (on_host.as_mut_ptr().cast(), 1)] {
                let mut op = 0;
                // SAFETY: the function writes a number to a place for one; the factor has the type, and lives as long as the
                // operation is used.
                nccl.ok(unsafe {
                    (nccl.ncclRedOpCreatePreMulSum)(&raw mut op, factor, data_type, residence, rank.comm)
                });
                assert_eq!(reduced(&rank, data_type, op, &numbers[1]), numbers[6], "type {data_type}");
                // SAFETY: the function takes a number and the handle of a live communicator.
                nccl.ok(unsafe { (nccl.ncclRedOpDestroy)(op, rank.comm) });
            }
        }
        rank.destroy();
    });
}

#[test]
fn the_default_streams_are_streams() {
    ranks(2, |rank| {
        let nccl = nccl();
        for default in [0usize, 1, 2] {
            let stream: Handle = ptr::without_provenance_mut(default);
            let numbers = Numbers::new(&[1.0f32; 64]);
            // SAFETY: the memory lives until the stream is synchronised.
            nccl.ok(unsafe {
                (nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), 64, F32, SUM, rank.comm, stream)
            });
            // SAFETY: the handle is that of a live stream.
            nccl.ok(unsafe { (nccl.mscclppSimStreamSynchronize)(stream) });
            assert_eq!(numbers.read(), [2.0; 64]);
        }
        rank.destroy();
    });
}

#[test]
fn captured_calls_are_replayed() {
    ranks(2, |rank| {
        let nccl = nccl();
        let numbers = Numbers::new(&[0.0f32; 5000]);
        let mut graph = ptr::null_mut();
        // SAFETY: the handle is that of a live stream; the function writes a handle to a place for one.
        unsafe {
            nccl.ok((nccl.mscclppSimStreamBeginCapture)(rank.stream.0));
            rank.all_reduce(&numbers);
            rank.all_reduce(&numbers);
            nccl.ok((nccl.mscclppSimStreamEndCapture)(rank.stream.0, &raw mut graph));
        }
        for round in 1..=5 {
            numbers.write(&[round as f32; 5000]);
            // SAFETY: the captured memory lives until the stream is synchronised.
            nccl.ok(unsafe { (nccl.mscclppSimGraphLaunch)(graph, rank.stream.0) });
            // This makes a call outside of the graph, between its launches.
            rank.assert_works();
            rank.stream.synchronize();
            assert_eq!(numbers.read(), [4.0 * round as f32; 5000], "round {round}");
        }
        // SAFETY: the handle is that of a live graph.
        nccl.ok(unsafe { (nccl.mscclppSimGraphDestroy)(graph) });
        rank.destroy();
    });
}

#[test]
fn wrong_arguments_are_named() {
    ranks(1, |rank| {
        let (nccl, numbers) = (nccl(), Numbers::new(&[0f32; 8]));
        let p = numbers.ptr();
        let (comm, stream) = (rank.comm, rank.stream.0);
        let bad = INVALID_ARGUMENT;
        // SAFETY: the memory has the sizes that the calls name, and wrong arguments are refused.
        unsafe {
            nccl.fails((nccl.ncclAllReduce)(p, p, 8, 12, SUM, comm, stream), bad, "`datatype` is 12");
            nccl.fails((nccl.ncclAllReduce)(p, p, 8, -1, SUM, comm, stream), bad, "`datatype` is -1");
            nccl.fails((nccl.ncclAllReduce)(p, p, 8, F32, 5, comm, stream), bad, "`op` is 5");
            nccl.fails((nccl.ncclBroadcast)(p, p, 8, F32, 1, comm, stream), bad, "`root` is 1");
            nccl.fails((nccl.ncclSend)(p, 8, F32, -1, comm, stream), bad, "`peer` is -1");
            nccl.fails(
                (nccl.ncclAllReduce)(p, p, 8, F32, SUM, ptr::null_mut(), stream),
                bad,
                "`comm` is NULL",
            );
            nccl.fails((nccl.ncclAllReduce)(p, p, 8, F32, SUM, stream, stream), bad, "no communicator");
            let nowhere: Handle = ptr::without_provenance_mut(0x77);
            nccl.fails((nccl.ncclAllReduce)(p, p, 8, F32, SUM, comm, nowhere), bad, "`stream` is 0x77");
        }
        rank.assert_works();
        rank.destroy();
    });
}
