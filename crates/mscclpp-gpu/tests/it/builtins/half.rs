//! Numbers of 16 bits.

use mscclpp_gpu::{DeviceBuffer, KernelArgs, LaunchConfig};

use super::{Builtins, Random, download, upload};

/// A format of 16 bits, by the bits of its fraction.
#[derive(Clone, Copy)]
struct Format {
    kernels: &'static str,
    fraction: u32,
}

const HALF: Format = Format { kernels: "half", fraction: 10 };
const BFLOAT16: Format = Format { kernels: "bfloat16", fraction: 7 };

impl Format {
    fn bias(self) -> i32 {
        (1 << (14 - self.fraction)) - 1
    }

    fn infinity(self) -> u16 {
        0x7fff >> self.fraction << self.fraction
    }

    fn value(self, bits: u16) -> f64 {
        let magnitude = bits & 0x7fff;
        let field = i32::from(magnitude >> self.fraction);
        let fraction = f64::from(magnitude & ((1 << self.fraction) - 1)) / f64::from(1 << self.fraction);
        let value = match magnitude {
            _ if magnitude > self.infinity() => f64::NAN,
            _ if magnitude == self.infinity() => f64::INFINITY,
            _ if field == 0 => fraction * 2f64.powi(1 - self.bias()),
            _ => (1.0 + fraction) * 2f64.powi(field - self.bias()),
        };
        if bits >> 15 == 0 { value } else { -value }
    }

    /// Returns the nearest number, of two as near the even one.
    fn nearest(self, value: f64) -> u16 {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let magnitude = value.abs();
        if value.is_nan() {
            return 0x7fff;
        }
        // The exponent of the number's last bit. A double's field is below any of the formats' where it is 0.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let last = 2f64.powi(exponent - self.fraction as i32);
        // A multiple of the last bit, which a double holds exactly; then its bits, counted from the smallest number up.
        let multiple = (magnitude / last).round_ties_even();
        let bits = multiple + f64::from((exponent + self.bias() - 1) << self.fraction);
        sign | if bits >= f64::from(self.infinity()) { self.infinity() } else { bits as u16 }
    }

    fn same(self, a: u16, b: u16) -> bool {
        a == b || (self.value(a).is_nan() && self.value(b).is_nan())
    }

    fn kernel(self, name: &str) -> String {
        format!("{}_{name}", self.kernels)
    }

    /// Returns random numbers: for half any, for bfloat16 those whose sums and products doubles hold exactly.
    fn number(self, random: &mut Random) -> u16 {
        let bits = random.next();
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
            assert!(same, "{}: {bits:#06x} is {expected:e}, not {float:e}", format.kernels);
        }
    });
}

#[test]
fn floats_become_the_nearest_number() {
    with_each_format(|builtins, format| {
        let mut random = Random(16);
        // The floats are every number, the point halfway to the next one, and the floats beside that; then random ones.
        let mut floats = Vec::new();
        for bits in 0..format.infinity() {
            let (this, next) = (format.value(bits), format.value(bits + 1));
            let halfway = if next.is_finite() { (this + next) / 2.0 } else { this * (1.0 + 1e-9) } as f32;
            floats.extend([this as f32, halfway.next_down(), -halfway, halfway, halfway.next_up()]);
        }
        floats.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 65519.996, 65520.0, -0.0]);
        floats.extend((0..10000).map(|_| f32::from_bits(random.next() as u32)));
        let input = upload(&builtins.gpu, &floats);
        let numbers: Vec<u16> = builtins.map(&format.kernel("narrow"), &[input.ptr()], floats.len(), 1);
        for (float, number) in floats.into_iter().zip(numbers) {
            let expected = format.nearest(float.into());
            assert!(
                format.same(number, expected),
                "{}: {float:e} is {number:#06x}, not {expected:#06x}",
                format.kernels
            );
        }
    });
}

#[test]
fn arithmetic_rounds_once() {
    with_each_format(|builtins, format| {
        let mut random = Random(9);
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
                .map(|exact| format.nearest(exact));
            for (j, (result, expected)) in results.iter().zip(expected).enumerate() {
                // Maxima and minima of zeros have any sign.
                let zeros = (4..6).contains(&j) && (result | expected) & 0x7fff == 0;
                assert!(
                    zeros || format.same(*result, expected),
                    "{}: result {j} of {a:e}, {b:e} and {c:e} is {result:#06x}, not {expected:#06x}",
                    format.kernels
                );
            }
            assert_eq!(results[8], flags, "{}: {a:e} and {b:e}", format.kernels);
        }
    });
}

#[test]
fn pairs_are_two_numbers() {
    with_each_format(|builtins, format| {
        let mut random = Random(2);
        let mut small = || ((random.next() >> 32) as i32 % 64) as f32 / 4.0;
        // The numbers change between low and high.
        let (a, b): (Vec<f32>, Vec<f32>) = (0..2000).map(|_| (small(), small())).unzip();
        let inputs = [upload(&builtins.gpu, &a), upload(&builtins.gpu, &b)];
        let pointers = inputs.each_ref().map(DeviceBuffer::ptr);
        let results: Vec<f32> = builtins.map(&format.kernel("pairs"), &pointers, a.len() / 2, 20);
        for ((a, b), results) in a.chunks(2).zip(b.chunks(2)).zip(results.chunks(20)) {
            let rounded = |exact: f32| format.value(format.nearest(exact.into())) as f32;
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
            assert_eq!(results, expected.as_flattened(), "{}: {a:?} and {b:?}", format.kernels);
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
        let expected = [64.0, 64.0, -64.0].map(|sum| format.nearest(sum));
        assert_eq!([download::<u16>(&number), download(&pair)].concat(), expected);
    });
}
