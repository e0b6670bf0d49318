//! The numbers of a collective: random ones, their sums, and how close others' sums must be.

use clap::ValueEnum;
use half::{bf16, f16};
use mscclpp_collectives::DataType;

/// The type of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Numbers {
    #[default]
    F16,
    Bf16,
    F32,
}

impl Numbers {
    pub(crate) fn data_type(self) -> DataType {
        match self {
            Self::F16 => DataType::F16,
            Self::Bf16 => DataType::Bf16,
            Self::F32 => DataType::F32,
        }
    }

    /// The size of one number in bytes.
    pub(crate) fn size(self) -> u64 {
        self.data_type().size()
    }

    /// Changes random bytes into finite numbers below 2, by clearing the highest bit of the exponent: the second highest of the
    /// last byte.
    pub(crate) fn moderate(self, mut bytes: Vec<u8>) -> Vec<u8> {
        let size = self.size() as usize;
        bytes.chunks_exact_mut(size).for_each(|number| number[size - 1] &= 0xbf);
        bytes
    }

    /// The sums of the numbers of all ranks, in the order of the ranks. Numbers of 16 bits are rounded once, at the end.
    pub(crate) fn sum(self, all: &[&[u8]]) -> Vec<u8> {
        let size = self.size() as usize;
        let (first, others) = all.split_first().expect("there is a rank");
        let mut sums = Vec::with_capacity(first.len());
        for at in (0..first.len()).step_by(size) {
            let number = |of: &[u8]| self.number(&of[at..at + size]);
            let sum = others.iter().fold(number(first), |sum, of| sum + number(of));
            self.put(sum, &mut sums);
        }
        sums
    }

    /// Whether each number is near the expected one. Allowed are two units in the last place; the smallest number of the type;
    /// and with more than two ranks half a unit of each intermediate sum, for numbers below 2.
    pub(crate) fn are_near(self, ranks: usize, found: &[u8], expected: &[u8]) -> bool {
        let (relative, smallest) = match self {
            Self::F16 => (2.0 / 1024.0, 2.0 * f32::from(f16::MIN_POSITIVE_SUBNORMAL)),
            Self::Bf16 => (2.0 / 128.0, f32::MIN_POSITIVE),
            Self::F32 => (2.0 * f32::EPSILON, f32::MIN_POSITIVE),
        };
        let on_the_way = if ranks > 2 { (2 * ranks * (ranks - 1)) as f32 * relative / 4.0 } else { 0.0 };
        let near = |(found, expected): (&[u8], &[u8])| {
            let (found, expected) = (self.number(found), self.number(expected));
            (found - expected).abs() <= relative * expected.abs() + smallest + on_the_way
        };
        let size = self.size() as usize;
        found == expected || found.chunks_exact(size).zip(expected.chunks_exact(size)).all(near)
    }

    fn put(self, number: f32, into: &mut Vec<u8>) {
        match self {
            Self::F16 => into.extend_from_slice(&f16::from_f32(number).to_le_bytes()),
            Self::Bf16 => into.extend_from_slice(&bf16::from_f32(number).to_le_bytes()),
            Self::F32 => into.extend_from_slice(&number.to_le_bytes()),
        }
    }

    fn number(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("{} bytes of {self:?}", bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random_bytes;

    const ALL: [Numbers; 3] = [Numbers::F16, Numbers::Bf16, Numbers::F32];

    fn bytes(numbers: Numbers, value: f32) -> Vec<u8> {
        let mut bytes = Vec::new();
        numbers.put(value, &mut bytes);
        bytes
    }

    #[test]
    fn random_numbers_are_finite_and_their_sums_too() {
        for numbers in ALL {
            let given = [1, 2].map(|seed| numbers.moderate(random_bytes(seed, 40_000)));
            let sums = numbers.sum(&[&given[0], &given[1]]);
            assert_eq!(sums.len(), 40_000);
            let all = given.iter().chain([&sums]).flat_map(|all| all.chunks(numbers.size() as usize));
            assert!(all.map(|number| numbers.number(number)).all(|number| number.abs() < 4.0), "{numbers:?}");
        }
    }

    #[test]
    fn sums_are_sums() {
        for numbers in ALL {
            let [one, half, three] = [1.0, 0.5, 3.0].map(|value| bytes(numbers, value));
            assert_eq!(numbers.sum(&[&one, &half]), bytes(numbers, 1.5));
            assert_eq!(numbers.sum(&[&one, &half, &three]), bytes(numbers, 4.5));
        }
    }

    #[test]
    fn rounding_is_near_and_anything_else_is_not() {
        for numbers in ALL {
            let one = bytes(numbers, 1.0);
            let next = |bytes: &[u8], by: u8| {
                let mut bytes = bytes.to_vec();
                bytes[0] += by;
                bytes
            };
            assert!(numbers.are_near(2, &one, &one));
            assert!(numbers.are_near(2, &next(&one, 1), &one) && numbers.are_near(2, &next(&one, 2), &one));
            assert!(!numbers.are_near(2, &next(&one, 4), &one), "{numbers:?}");
            assert!(!numbers.are_near(2, &bytes(numbers, -1.0), &one));
            assert!(!numbers.are_near(2, &bytes(numbers, f32::NAN), &one));
            assert!(!numbers.are_near(2, &bytes(numbers, 0.0), &one));
            assert!(!numbers.are_near(
                2,
                &[&one[..], &bytes(numbers, 1.5)].concat(),
                &[&one[..], &one].concat()
            ));
            // The intermediate sums of four ranks may have been larger.
            assert!(
                numbers.are_near(4, &next(&one, 4), &one) && !numbers.are_near(4, &bytes(numbers, 1.5), &one)
            );
            assert!(numbers.are_near(2, &next(&bytes(numbers, 0.0), 1), &bytes(numbers, 0.0)), "{numbers:?}");
        }
    }
}
