//! Numbers of 8 and 16 bits in vectors, and their sums.

use mscclpp_gpu::{KernelArgs, KernelParam, LaunchConfig, Platform};
use mscclpp_test_support::Random;

use super::{Builtins, device, download, upload};

/// A format by its bits of exponent and fraction, and the special values at the top of its numbers.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub(super) name: &'static str,
    exponent: u32,
    pub(super) fraction: u32,
    /// The bits of the largest number.
    largest: u16,
    /// The bits of the result for a number that is too large, where nothing clips it.
    pub(super) beyond: u16,
    bias: i32,
}

const FP8: [Format; 3] = [
    Format { name: "e4m3", exponent: 4, fraction: 3, largest: 0x7e, beyond: 0x7f, bias: 7 },
    Format { name: "e5m2", exponent: 5, fraction: 2, largest: 0x7b, beyond: 0x7c, bias: 15 },
    Format { name: "e4m3b15", exponent: 4, fraction: 3, largest: 0x7f, beyond: 0x7f, bias: 15 },
];
pub(super) const HALF: Format =
    Format { name: "half", exponent: 5, fraction: 10, largest: 0x7bff, beyond: 0x7c00, bias: 15 };
pub(super) const BFLOAT16: Format =
    Format { name: "bfloat16", exponent: 8, fraction: 7, largest: 0x7f7f, beyond: 0x7f80, bias: 127 };

impl Format {
    fn sign(self) -> u16 {
        1 << (self.exponent + self.fraction)
    }

    pub(super) fn value(self, bits: u16) -> f64 {
        let magnitude = bits & (self.sign() - 1);
        let (field, fraction) =
            (i32::from(magnitude >> self.fraction), magnitude & ((1 << self.fraction) - 1));
        let fraction = f64::from(fraction) / f64::from(1 << self.fraction);
        let value = match magnitude {
            _ if magnitude > self.largest && magnitude == self.beyond && self.name != "e4m3" => f64::INFINITY,
            _ if magnitude > self.largest => f64::NAN,
            _ if field == 0 => fraction * 2f64.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2f64.powi(field - self.bias),
        };
        if bits & self.sign() == 0 { value } else { -value }
    }

    /// Returns the nearest number, of two as near the even one; for numbers that are too large the largest if `clips`.
    pub(super) fn nearest(self, value: f64, clips: bool) -> u16 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let top = if clips { self.largest } else { self.beyond };
        if value.is_nan() {
            return if self.name == "e4m3b15" { sign | top } else { self.sign() - 1 };
        }
        let magnitude = value.abs();
        // The exponent of the number's last bit. A double's field is below any of the formats' where it is 0.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        let last = 2f64.powi(exponent - self.fraction as i32);
        // A multiple of the last bit, which a double holds exactly; then its bits, counted from the smallest number up.
        let bits =
            (magnitude / last).round_ties_even() + f64::from((exponent + self.bias - 1) << self.fraction);
        sign | if bits > f64::from(self.largest) { top } else { bits as u16 }
    }

    fn check(self, what: &str, found: u16, expected: u16) {
        // In formats without NaNs they become the largest number, whose sign is open.
        let (found, expected) = match (self.name, what.ends_with("NaN")) {
            ("e4m3b15", true) => (found & !self.sign(), expected & !self.sign()),
            _ => (found, expected),
        };
        let nans = self.value(found).is_nan() && self.value(expected).is_nan();
        assert!(found == expected || nans, "{}: {what}: {found:#06x}, not {expected:#06x}", self.name);
    }

    fn numbers(self) -> Vec<u16> {
        (0..=(self.sign() - 1) | self.sign()).collect()
    }
}

/// Calls `test` on a platform with these types. AMD's fp8 has other numbers.
fn with_types(test: impl Fn(&Builtins)) {
    if device::platform() == Platform::Hip {
        println!("not tested: AMD's fp8 has other numbers");
    } else if let Some(builtins) = Builtins::with_toolkit("data_types.cu", include_str!("data_types.cu")) {
        test(&builtins);
    }
}

/// Returns the bits as a kernel stores them: a byte or two each.
fn packed(format: Format, numbers: &[u16]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(KernelParam::to_bytes);
    if format.sign() > 0x80 { bytes.collect() } else { bytes.step_by(2).collect() }
}

fn unpacked(format: Format, bytes: Vec<u8>) -> Vec<u16> {
    match format.sign() {
        0x80 => bytes.into_iter().map(u16::from).collect(),
        _ => bytes.as_chunks().0.iter().map(|chunk| u16::from_ne_bytes(*chunk)).collect(),
    }
}

impl Builtins {
    /// Returns the bytes that a kernel writes for `count` numbers: one output for each size in `outputs`.
    fn pairs(&self, kernel: &str, inputs: &[Vec<u8>], count: usize, outputs: &[usize]) -> Vec<Vec<u8>> {
        let inputs: Vec<_> = inputs.iter().map(|bytes| upload(&self.gpu, bytes)).collect();
        let outputs: Vec<_> =
            outputs.iter().map(|bytes| self.gpu.allocate((bytes * count) as u64).unwrap()).collect();
        let buffers = inputs.iter().chain(&outputs);
        let args = buffers.fold(KernelArgs::new(), |args, buffer| args.with(buffer.ptr()));
        self.launch(kernel, LaunchConfig::linear(3, 96), &args.with(count as u32 / 2));
        outputs.iter().map(download).collect()
    }
}

#[test]
fn every_number_of_8_bits_is_widened_exactly() {
    with_types(|builtins| {
        for format in FP8 {
            let numbers = format.numbers();
            let kernel = format!("{}_widen", format.name);
            let outputs = builtins.pairs(&kernel, &[packed(format, &numbers)], numbers.len(), &[4, 4]);
            for floats in outputs {
                let floats = floats.as_chunks().0.iter().map(|chunk| f32::from_ne_bytes(*chunk));
                for (bits, float) in numbers.iter().zip(floats) {
                    let expected = format.value(*bits);
                    let same = f64::from(float).to_bits() == expected.to_bits();
                    let nans = float.is_nan() && expected.is_nan();
                    assert!(same || nans, "{}: {bits:#04x} is {expected}, not {float}", format.name);
                }
            }
        }
    });
}

#[test]
fn floats_and_halves_become_the_nearest_number_or_the_largest() {
    with_types(|builtins| {
        let mut random = Random::with_seed(8);
        for format in FP8 {
            let mut floats = vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, -1e-40];
            for bits in 0..=format.largest {
                let (this, next) = (format.value(bits), format.value((bits + 1).min(format.largest)));
                let halfway = ((this + next) / 2.0) as f32;
                floats.extend([halfway.next_down(), -halfway, halfway, halfway.next_up()]);
            }
            floats.extend((0..10000).map(|_| f32::from_bits(random.word() as u32)));
            // There are as many random floats in the range of the formats.
            floats.extend(
                (0..10000)
                    .map(|_| 2f32.powi((random.word() % 40) as i32 - 24) * f32::from(random.word() as i8)),
            );
            let input = floats.iter().flat_map(KernelParam::to_bytes).collect();
            let kernel = format!("{}_narrow", format.name);
            let found = builtins.pairs(&kernel, &[input], floats.len(), &[1]).remove(0);
            for (float, found) in floats.iter().zip(found) {
                format.check(&format!("{float:e}"), found.into(), format.nearest((*float).into(), true));
            }

            let halves = HALF.numbers();
            let input = halves.iter().flat_map(KernelParam::to_bytes).collect();
            let kernel = format!("{}_narrow_half", format.name);
            let found = builtins.pairs(&kernel, &[input], halves.len(), &[1]).remove(0);
            for (half, found) in halves.iter().map(|bits| HALF.value(*bits)).zip(found) {
                format.check(&format!("the half {half:e}"), found.into(), format.nearest(half, true));
            }
        }
    });
}

#[test]
fn sums_are_rounded_once_and_clipped() {
    with_types(|builtins| {
        let mut random = Random::with_seed(5);
        for format in [FP8[0], FP8[1], FP8[2], HALF, BFLOAT16] {
            // Of 8 bits all pairs of numbers; of 16 bits any, of bfloat16 those whose sums doubles hold exactly.
            let (a, b): (Vec<u16>, Vec<u16>) = if format.sign() == 0x80 {
                (0..=0xffffu16).map(|both| (both & 0xff, both >> 8)).unzip()
            } else {
                let mut any = || {
                    let bits = random.word();
                    if format.fraction == 10 || bits >> 60 == 0 {
                        return bits as u16;
                    }
                    (bits & 0x807f) as u16 | ((220 + (bits >> 32) % 35) as u16) << 7
                };
                (0..60000).map(|_| (any(), any())).unzip()
            };
            let size = if format.sign() > 0x80 { 2 } else { 1 };
            let inputs = [packed(format, &a), packed(format, &b)];
            let kernel = format!("{}_add", format.name);
            let outputs = builtins.pairs(&kernel, &inputs, a.len(), &[size; 3]).into_iter();
            let [clipped, plain, least]: [Vec<u16>; 3] =
                outputs.map(|bytes| unpacked(format, bytes)).collect::<Vec<_>>().try_into().unwrap();
            for i in 0..a.len() {
                let (x, y) = (format.value(a[i]), format.value(b[i]));
                let sum = x + y;
                let what = format!("{x:e} and {y:e}");
                // A sum of infinities is clipped, too.
                format.check(&what, clipped[i], format.nearest(sum, true));
                format.check(&what, plain[i], format.nearest(sum, false));
                let expected = format.nearest(x.min(y), false);
                // The lesser of zeros has any sign.
                if x != 0.0 || y != 0.0 {
                    format.check(&format!("the lesser of {what}"), least[i], expected);
                }
            }
        }
    });
}

#[test]
fn vectors_are_indexed_stored_and_converted() {
    with_types(|builtins| {
        let wrong = upload(&builtins.gpu, &[0u32]);
        builtins.launch("vectors", LaunchConfig::linear(1, 1), &KernelArgs::new().with(wrong.ptr()));
        assert_eq!(download::<u32>(&wrong), [0], "the line of data_types.cu with what is not so");
    });
}
