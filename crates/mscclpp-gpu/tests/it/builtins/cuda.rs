//! Integers, floats, vectors, memory, atomics and clocks.

use mscclpp_gpu::{DeviceBuffer, KernelArgs, LaunchConfig};
use mscclpp_test_support::Random;

use super::{Builtins, download, upload};

/// Returns random numbers, preceded by all pairs of the numbers at the edges.
fn pairs_of_words(edges: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let mut random = Random::with_seed(11);
    edges
        .iter()
        .flat_map(|a| edges.iter().map(move |b| (*a, *b)))
        .chain((0..1000).map(|_| (random.word(), random.word())))
        .unzip()
}

fn low_words(words: &[u64]) -> Vec<u32> {
    words.iter().map(|word| *word as u32).collect()
}

#[test]
fn vectors_have_the_layout_that_cuda_documents() {
    let builtins = Builtins::cuda();
    let out = builtins.gpu.allocate(4 * (7 * 8 + 5 * 6 + 2)).unwrap();
    builtins.launch("vector_layouts", LaunchConfig::linear(1, 32), &KernelArgs::new().with(out.ptr()));
    // Sizes of one, two, three and four, and their alignments.
    let of = |size: u32, two: u32, four: u32| [size, 2 * size, 3 * size, 4 * size, size, two, size, four];
    let (bytes, shorts, words) = (of(1, 2, 4), of(2, 4, 8), of(4, 8, 16));
    let longs = [8, 16, 24, 8, 16, 8];
    let mut expected = [bytes, bytes, shorts, shorts, words, words, words].concat();
    expected.extend([longs; 5].as_flattened());
    expected.extend([12, 7 * 100 + 8 * 10 + 1]);
    assert_eq!(download::<u32>(&out), expected);
}

fn byte_perm(low: u32, high: u32, selector: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    u32::from_le_bytes([0, 4, 8, 12].map(|shift| bytes[(selector >> shift & 7) as usize]))
}

/// Returns the high word of high:low shifted left, and the low word of it shifted right.
fn funnel(low: u32, high: u32, left: u32, right: u32) -> (u32, u32) {
    let both = u128::from(high) << 32 | u128::from(low);
    ((both << left >> 32) as u32, (both >> right) as u32)
}

/// Returns the low 24 bits, with and without their sign.
fn low24(a: u32) -> (i32, u32) {
    ((a << 8) as i32 >> 8, a & 0x00ff_ffff)
}

fn expected_words(a: u32, b: u32) -> [u32; 24] {
    let (x, y) = (a as i32, b as i32);
    let ((x24, a24), (y24, b24)) = (low24(a), low24(b));
    let (wide_x, wide_y) = (i64::from(x), i64::from(y));
    let (wide_a, wide_b) = (u64::from(a), u64::from(b));
    [
        a.count_ones(),
        a.leading_zeros(),
        if a == 0 { 0 } else { a.trailing_zeros() + 1 },
        a.reverse_bits(),
        byte_perm(a, b, 0x1a74 & 0x7777),
        byte_perm(a, b, b & 0x7777),
        funnel(a, b, a & 31, 0).0,
        funnel(a, b, (a & 63).min(32), 0).0,
        funnel(a, b, 0, b & 31).1,
        funnel(a, b, 0, (b & 63).min(32)).1,
        ((wide_x * wide_y) >> 32) as u32,
        ((wide_a * wide_b) >> 32) as u32,
        x24.wrapping_mul(y24) as u32,
        a24.wrapping_mul(b24),
        x.abs_diff(y).wrapping_add(a),
        a.abs_diff(b).wrapping_add(b),
        ((wide_x + wide_y) >> 1) as u32,
        ((wide_x + wide_y + 1) >> 1) as u32,
        ((wide_a + wide_b) >> 1) as u32,
        ((wide_a + wide_b + 1) >> 1) as u32,
        x.min(y) as u32,
        a.max(b),
        a.min(b),
        a.min(b),
    ]
}

#[test]
fn functions_of_words_calculate_as_documented() {
    let builtins = Builtins::cuda();
    let (a, b) = pairs_of_words(&[0, 1, 2, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, 0x00ff_ffff, 0xffff_ffff]);
    let (a, b) = (low_words(&a), low_words(&b));
    let inputs = [upload(&builtins.gpu, &a), upload(&builtins.gpu, &b)];
    let results: Vec<u32> = builtins.map("words", &[inputs[0].ptr(), inputs[1].ptr()], a.len(), 24);
    for ((a, b), results) in a.iter().zip(&b).zip(results.chunks(24)) {
        assert_eq!(results, expected_words(*a, *b), "of {a:#x} and {b:#x}");
    }
}

#[test]
fn functions_of_long_words_calculate_as_documented() {
    let builtins = Builtins::cuda();
    let (a, b) = pairs_of_words(&[0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX]);
    let inputs = [upload(&builtins.gpu, &a), upload(&builtins.gpu, &b)];
    let results: Vec<u64> = builtins.map("long_words", &[inputs[0].ptr(), inputs[1].ptr()], a.len(), 8);
    for ((&a, &b), results) in a.iter().zip(&b).zip(results.chunks(8)) {
        let (x, y) = (a as i64, b as i64);
        let expected = [
            u64::from(a.count_ones()),
            u64::from(a.leading_zeros()),
            if a == 0 { 0 } else { u64::from(a.trailing_zeros()) + 1 },
            a.reverse_bits(),
            ((i128::from(x) * i128::from(y)) >> 64) as u64,
            ((u128::from(a) * u128::from(b)) >> 64) as u64,
            x.min(y) as u64,
            a.max(b),
        ];
        assert_eq!(results, expected, "of {a:#x} and {b:#x}");
    }
}

/// Returns random bits as floats, and the floats at the edges.
fn some_floats() -> Vec<f32> {
    let mut random = Random::with_seed(5);
    let edges =
        [0.0, 0.5, 1.5, 2.5, 3.5, 0.1, 1e-40, 1e30, 2147483520.0, 2147483648.0, 4294967040.0, 4294967296.0];
    let large = [
        9.223372e18,
        1.8446742e19,
        1.8446744e19,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        65504.0,
        65520.0,
    ];
    let mut floats: Vec<f32> = edges.iter().chain(&large).flat_map(|edge| [*edge, -*edge]).collect();
    floats.push(f32::NAN);
    floats.extend((0..1000).map(|_| f32::from_bits(random.word() as u32)));
    // These floats have fractions that matter.
    floats.extend((0..1000).map(|_| (random.word() as i32) as f32 / 65536.0));
    floats
}

#[test]
fn floats_become_integers_in_each_rounding() {
    let builtins = Builtins::cuda();
    let floats = some_floats();
    let input = upload(&builtins.gpu, &floats);
    let results: Vec<i64> = builtins.map("float_to_integer", &[input.ptr()], floats.len(), 14);
    for (&value, results) in floats.iter().zip(results.chunks(14)) {
        let (nearest, zero, up, down) = (value.round_ties_even(), value.trunc(), value.ceil(), value.floor());
        // `as` gives the nearest that fits, as PTX does. Of NaN it makes 0, PTX only where both sides have 32 bits.
        let or_highest_bit = |integer: i64, bits: u32| match (value.is_nan(), bits) {
            (false, _) => integer,
            (true, 64) => i64::MIN,
            (true, 32) => 1 << 31,
            (true, _) => i64::from(i32::MIN),
        };
        let expected = [
            i64::from(nearest as i32),
            i64::from(zero as i32),
            i64::from(up as i32),
            i64::from(down as i32),
            i64::from(nearest as u32),
            i64::from(zero as u32),
            or_highest_bit(nearest as i64, 64),
            or_highest_bit(down as i64, 64),
            or_highest_bit(zero as u64 as i64, 64),
            or_highest_bit(up as u64 as i64, 64),
            or_highest_bit(i64::from(nearest as i32), 31),
            or_highest_bit(i64::from(zero as u32), 32),
            or_highest_bit(up as i64, 64),
            or_highest_bit(down as u64 as i64, 64),
        ];
        assert_eq!(results, expected, "of {value:e}");
    }
}

/// Returns the float or double nearest to an integer, the one that is not above it, the one that is not below it, and the
/// one that is no farther from 0.
macro_rules! roundings {
    ($float:ty, $value:expr) => {{
        let value = i128::from($value);
        let nearest = value as $float;
        let down = if nearest as i128 > value { nearest.next_down() } else { nearest };
        let up = if (nearest as i128) < value { nearest.next_up() } else { nearest };
        (nearest, down, up, if value < 0 { up } else { down })
    }};
}

#[test]
fn integers_become_floats_in_each_rounding() {
    let builtins = Builtins::cuda();
    let mut random = Random::with_seed(3);
    let edges = [
        0,
        1,
        -1,
        16777217,
        -16777219,
        i32::MAX.into(),
        i32::MIN.into(),
        u32::MAX.into(),
        i64::MAX,
        i64::MIN,
    ];
    let integers: Vec<i64> =
        edges.into_iter().chain((0..1000).map(|i| random.word() as i64 >> (i % 64))).collect();
    let input = upload(&builtins.gpu, &integers);
    let results: Vec<u64> = builtins.map("integer_to_float", &[input.ptr()], integers.len(), 12);
    for (&value, results) in integers.iter().zip(results.chunks(12)) {
        let (int_nearest, int_down, int_up, int_zero) = roundings!(f32, value as i32);
        let (long_nearest, _, _, long_zero) = roundings!(f32, value);
        let (_, unsigned_down, _, _) = roundings!(f32, value as u64);
        let (double_nearest, _, double_up, _) = roundings!(f64, value);
        let (_, _, _, unsigned_double_zero) = roundings!(f64, value as u64);
        let floats = [
            int_nearest,
            int_zero,
            int_up,
            int_down,
            value as u32 as f32,
            long_nearest,
            long_zero,
            unsigned_down,
        ];
        let mut expected = floats.map(|float| u64::from(float.to_bits())).to_vec();
        expected.extend([double_nearest, double_up, unsigned_double_zero].map(f64::to_bits));
        expected.push(value as u64);
        assert_eq!(results, expected, "of {value}");
    }
}

/// Whether both are equal, or both NaN. Zeros are equal whatever their signs, which minima and maxima leave open.
fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

#[test]
fn arithmetic_of_floats_rounds_each_operation() {
    let builtins = Builtins::cuda();
    let a = some_floats();
    let rotated = |by: usize| a.iter().cycle().skip(by).take(a.len()).copied().collect::<Vec<f32>>();
    let (b, c) = (rotated(7), rotated(301));
    let inputs = [&a, &b, &c].map(|floats| upload(&builtins.gpu, floats));
    let results: Vec<f32> = builtins.map("floats", &inputs.each_ref().map(DeviceBuffer::ptr), a.len(), 12);
    for (i, results) in results.chunks(12).enumerate() {
        let (a, b, c) = (a[i], b[i], c[i]);
        let product = f64::from(a) * f64::from(b);
        let nearest = product as f32;
        let truncated = match f64::from(nearest).abs() > product.abs() {
            true if nearest > 0.0 => nearest.next_down(),
            true => nearest.next_up(),
            false => nearest,
        };
        let expected = [
            a + b,
            a - b,
            a * b + c,
            a.mul_add(b, c),
            a / b,
            1.0 / a,
            a.sqrt(),
            if a > 0.0 { a.min(1.0) } else { 0.0 },
            a.min(b),
            a.max(b),
            truncated,
            -a,
        ];
        for (j, (result, expected)) in results.iter().zip(expected).enumerate() {
            assert!(
                same(*result, expected),
                "result {j} of {a:e}, {b:e} and {c:e}: {result:e}, not {expected:e}"
            );
        }
    }
}

#[test]
fn fast_functions_are_near_the_exact_ones() {
    let builtins = Builtins::cuda();
    let inputs: Vec<f32> = (1..=800).map(|i| i as f32 / 100.0).collect();
    let input = upload(&builtins.gpu, &inputs);
    let results: Vec<f32> = builtins.map("approximations", &[input.ptr()], inputs.len(), 11);
    for (&a, results) in inputs.iter().zip(results.chunks(11)) {
        let root = 1.0 / a.sqrt();
        let logarithms = [a.ln(), a.log2(), a.log10()];
        let [ln, log2, log10] = logarithms;
        let expected =
            [a.exp(), 10f32.powf(a), ln, log2, log10, a.powf(1.5), a.sin(), a.cos(), a / 3.0, root, root];
        for (j, (result, expected)) in results.iter().zip(expected).enumerate() {
            let error = (result - expected).abs();
            assert!(error <= 1e-5 + 1e-5 * expected.abs(), "result {j} of {a}: {result}, not {expected}");
        }
    }
}

#[test]
fn loads_and_stores_with_a_hint_copy_every_byte() {
    let builtins = Builtins::cuda();
    let mut random = Random::with_seed(8);
    let words: Vec<u64> = (0..2 * 600).map(|_| random.word()).collect();
    let input = upload(&builtins.gpu, &words);
    // Two words are one vector.
    let copied: Vec<u64> = builtins.map("cache_hints", &[input.ptr()], words.len() / 2, 2);
    assert_eq!(copied, words);
}

#[test]
fn atomics_of_many_threads_lose_nothing() {
    const BLOCKS: u32 = 5;
    const THREADS: u32 = 96;
    const ALL: u32 = BLOCKS * THREADS;
    let builtins = Builtins::cuda();
    // The fields of Totals: 8 of 8 bytes, 14 of 4 bytes, 2 of 2 bytes and the end of it.
    let mut start = [0u32; 32];
    start[4..6].fill(u32::MAX);
    start[22] = u32::MAX;
    let totals = upload(&builtins.gpu, &start);
    let zeros = vec![0u32; ALL as usize];
    let (exchanged, tickets) = (upload(&builtins.gpu, &zeros), upload(&builtins.gpu, &zeros));
    let args = KernelArgs::new().with(totals.ptr()).with(exchanged.ptr()).with(tickets.ptr());
    builtins.launch("atomics", LaunchConfig::linear(BLOCKS, THREADS), &args);

    let (longs, words) = (download::<u64>(&totals), download::<u32>(&totals));
    let (all, sum) = (u64::from(ALL), ALL * (ALL - 1) / 2);
    let last = ALL - 1;
    let expected = [
        (all << 40) + u64::from(sum),
        u64::from(last) << 33,
        u64::MAX - u64::from(last),
        u64::MAX,
        3 * all,
        u64::from(last - 50),
        (-(i64::from(last) << 35)) as u64,
        (0.5 * f64::from(ALL)).to_bits(),
    ];
    assert_eq!(longs[..8], expected);
    // Counting down from 0 goes to 6, 5, ..., 0.
    let (up, down) = (ALL % 7, (7 - ALL % 7) % 7);
    // Each bit is flipped by 15 threads, since every 32nd of 480 does it.
    let toggled = u32::MAX;
    let expected =
        [sum, sum.wrapping_neg(), last - 100, last.wrapping_neg(), up, down, 0xffff_0000, 0xffff, toggled];
    assert_eq!(words[16..25], expected);
    let last_exchanged = words[25];
    let expected = [2 * THREADS, ALL, (0.25 * ALL as f32).to_bits(), 1.5f32.to_bits(), ALL];
    assert_eq!(words[26..31], expected);

    // Each value that was taken out had been put in, also the start's 0; all but the last were taken out.
    let mut chain = download::<u32>(&exchanged);
    chain.push(last_exchanged);
    chain.sort_unstable();
    assert_eq!(chain, (0..=ALL).collect::<Vec<u32>>());
    let mut tickets = download::<u32>(&tickets);
    tickets.sort_unstable();
    assert_eq!(tickets, (0..ALL).collect::<Vec<u32>>());
}

#[test]
fn clocks_run() {
    let builtins = Builtins::cuda();
    let failures = upload(&builtins.gpu, &[0u32]);
    builtins.launch("clocks", LaunchConfig::linear(2, 40), &KernelArgs::new().with(failures.ptr()));
    assert_eq!(download::<u32>(&failures), [0]);
}

#[test]
fn blocks_that_look_again_see_their_turn() {
    const BLOCKS: u32 = 8;
    let builtins = Builtins::cuda();
    let (turn, order) = (upload(&builtins.gpu, &[0u32]), upload(&builtins.gpu, &[0u32; BLOCKS as usize]));
    builtins.launch(
        "in_turns",
        LaunchConfig::linear(BLOCKS, 32),
        &KernelArgs::new().with(turn.ptr()).with(order.ptr()),
    );
    assert_eq!(download::<u32>(&turn), [BLOCKS]);
    assert_eq!(download::<u32>(&order), (0..BLOCKS).collect::<Vec<u32>>());
}
