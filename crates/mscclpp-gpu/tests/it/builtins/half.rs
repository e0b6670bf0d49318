//! Numbers of 16 bits.

use mscclpp_gpu::{DeviceBuffer, KernelArgs, LaunchConfig};
use mscclpp_test_support::Random;

use super::{
    Builtins,
    data_types::{BFLOAT16, Format, HALF},
    download, upload,
};

impl Format {
    fn same(self, a: u16, b: u16) -> bool {
        a == b || (self.value(a).is_nan() && self.value(b).is_nan())
    }

    fn kernel(self, name: &str) -> String {
        format!("{}_{name}", self.name)
    }

    /// Returns random numbers: for half any, for bfloat16 those whose sums and products doubles hold exactly.
    fn number(self, random: &mut Random) -> u16 {
        let bits = random.word();
        match self.fraction {
            10 => bits as u16,
            _ => (bits & 0x807f) as u16 | ((110 + (bits >> 32) % 34) as u16) << 7,
        }
    }
}

/// Calls `test` with each format, on a platform with these types.
fn with_each_format(test: impl Fn(&Builtins, Format)) {
    let text = include_str!("half_builtins.cu");
    if let Some(builtins) = Builtins::with_toolkit("half_builtins.cu", text) {
        test(&builtins, HALF);
        test(&builtins, BFLOAT16);
    }
}

#[test]
fn every_number_becomes_the_float_that_it_is() {
    with_each_format(|builtins, format| {
        let numbers: Vec<u16> = (0..=u16::MAX).collect();
        let input = upload(&builtins.gpu, &numbers);
        let floats: Vec<f32> = builtins.map(&format.kernel("widen"), &[input.ptr()], numbers.len(), 1);
        for (bits, float) in numbers.into_iter().zip(floats) {
            let expected = format.value(bits);
            let same =
                f64::from(float).to_bits() == expected.to_bits() || (float.is_nan() && expected.is_nan());
            assert!(same, "{}: {bits:#06x} is {expected:e}, not {float:e}", format.name);
        }
    });
}

#[test]
fn floats_become_the_nearest_number() {
    with_each_format(|builtins, format| {
        let mut random = Random::with_seed(16);
        // The floats are every number, the point halfway to the next one, and the floats beside that; then random ones.
        let mut floats = Vec::new();
        for bits in 0..format.beyond {
            let (this, next) = (format.value(bits), format.value(bits + 1));
            let halfway = if next.is_finite() { (this + next) / 2.0 } else { this * (1.0 + 1e-9) } as f32;
            floats.extend([this as f32, halfway.next_down(), -halfway, halfway, halfway.next_up()]);
        }
        floats.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 65519.996, 65520.0, -0.0]);
        floats.extend((0..10000).map(|_| f32::from_bits(random.word() as u32)));
        let input = upload(&builtins.gpu, &floats);
        let numbers: Vec<u16> = builtins.map(&format.kernel("narrow"), &[input.ptr()], floats.len(), 1);
        for (float, number) in floats.into_iter().zip(numbers) {
            let expected = format.nearest(float.into(), false);
            assert!(
                format.same(number, expected),
                "{}: {float:e} is {number:#06x}, not {expected:#06x}",
                format.name
            );
        }
    });
}

#[test]
fn arithmetic_rounds_once() {
    with_each_format(|builtins, format| {
        let mut random = Random::with_seed(9);
        let mut numbers = || (0..20000).map(|_| format.number(&mut random)).collect::<Vec<u16>>();
        let operands = [numbers(), numbers(), numbers()];
        let inputs = operands.each_ref().map(|numbers| upload(&builtins.gpu, numbers));
        let pointers = inputs.each_ref().map(DeviceBuffer::ptr);
        let results: Vec<u16> = builtins.map(&format.kernel("calculate"), &pointers, operands[0].len(), 9);
        for (i, results) in results.chunks(9).enumerate() {
            let [a, b, c] = operands.each_ref().map(|numbers| format.value(numbers[i]));
            // With NaN, `!=` is true, and so is the comparison that is "greater, or unordered".
            let greater_or_unordered = a.partial_cmp(&b).is_none_or(std::cmp::Ordering::is_gt);
            let flags = [a < b, a <= b, a == b, a != b, greater_or_unordered, a.is_nan()];
            let flags = flags.iter().enumerate().fold(0, |flags, (bit, set)| flags | u16::from(*set) << bit);
            let expected = [a + b, a - b, a * b, a.mul_add(b, c), a.max(b), a.min(b), -a, a.abs()]
                .map(|exact| format.nearest(exact, false));
            for (j, (result, expected)) in results.iter().zip(expected).enumerate() {
                // Maxima and minima of zeros have any sign.
                let zeros = (4..6).contains(&j) && (result | expected) & 0x7fff == 0;
                assert!(
                    zeros || format.same(*result, expected),
                    "{}: result {j} of {a:e}, {b:e} and {c:e} is {result:#06x}, not {expected:#06x}",
                    format.name
                );
            }
            assert_eq!(results[8], flags, "{}: {a:e} and {b:e}", format.name);
        }
    });
}

#[test]
fn pairs_are_two_numbers() {
    with_each_format(|builtins, format| {
        let mut random = Random::with_seed(2);
        let mut small = || ((random.word() >> 32) as i32 % 64) as f32 / 4.0;
        // The numbers change between low and high.
        let (a, b): (Vec<f32>, Vec<f32>) = (0..2000).map(|_| (small(), small())).unzip();
        let inputs = [upload(&builtins.gpu, &a), upload(&builtins.gpu, &b)];
        let pointers = inputs.each_ref().map(DeviceBuffer::ptr);
        let results: Vec<f32> = builtins.map(&format.kernel("pairs"), &pointers, a.len() / 2, 20);
        for ((a, b), results) in a.chunks(2).zip(b.chunks(2)).zip(results.chunks(20)) {
            let rounded = |exact: f32| format.value(format.nearest(exact.into(), false)) as f32;
            let each = |operation: fn(f32, f32) -> f32| [0, 1].map(|i| rounded(operation(a[i], b[i])));
            let expected = [
                each(|a, b| a + b),
                each(|a, b| a - b),
                each(|a, b| a * b),
                each(|a, b| a * b + a),
                each(f32::max),
                each(f32::min),
                each(|a, _| -a),
                each(|a, b| f32::from(u8::from(a < b))),
                [a[1], a[0]],
                [a[1], b[0]],
            ];
            assert_eq!(results, expected.as_flattened(), "{}: {a:?} and {b:?}", format.name);
        }
    });
}

#[test]
fn atomic_additions_of_many_threads_lose_nothing() {
    with_each_format(|builtins, format| {
        // 256 quarters are 64, and no sum on the way is rounded.
        let (number, pair) = (upload(&builtins.gpu, &[0u16]), upload(&builtins.gpu, &[0u16; 2]));
        let args = KernelArgs::new().with(number.ptr()).with(pair.ptr());
        builtins.launch(&format.kernel("atomics"), LaunchConfig::linear(2, 128), &args);
        let expected = [64.0, 64.0, -64.0].map(|sum| format.nearest(sum, false));
        assert_eq!([download::<u16>(&number), download(&pair)].concat(), expected);
    });
}
