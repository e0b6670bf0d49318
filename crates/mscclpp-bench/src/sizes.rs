//! Sizes of messages, from the command line.

use clap::Args;

/// A range of sizes, each a factor larger than the one before, like in other benchmarks of collective communication.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Range {
    /// The smallest message: bytes, or a number followed by K, M or G (powers of 1024).
    #[arg(short, long, value_name = "SIZE", value_parser = parse_bytes)]
    begin: Option<u64>,
    /// The largest message, which is always measured too.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_bytes)]
    end: Option<u64>,
    /// The factor by which each message is larger than the one before.
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(2..))]
    factor: Option<u64>,
}

/// The sizes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) factor: u64,
}

impl Range {
    /// The sizes, with missing values from `default`; if only begin or end is given, the other is adjusted to it.
    ///
    /// # Errors
    /// An end before the begin; a size that is not a multiple of `unit`.
    pub(crate) fn or(&self, default: Sizes, unit: u64) -> Result<Sizes, String> {
        let begin = self.begin.unwrap_or_else(|| default.begin.min(self.end.unwrap_or(u64::MAX)));
        let end = self.end.unwrap_or_else(|| default.end.max(begin));
        if end < begin {
            return Err(format!("--end {end} is before --begin {begin}"));
        }
        let sizes = Sizes { begin, end, factor: self.factor.unwrap_or(default.factor) };
        match sizes.iter().find(|size| size % unit != 0) {
            Some(size) => Err(format!("{size} bytes are no whole number of elements of {unit} bytes")),
            None => Ok(sizes),
        }
    }

    /// The sizes for messages of whole elements of `element` bytes; by default one element.
    pub(crate) fn of_elements(&self, element: u64) -> Result<Sizes, String> {
        self.or(Sizes { begin: element, end: element, factor: 2 }, element)
    }
}

impl Sizes {
    /// Rounds the sizes down to multiples of `unit`, but not below `unit`.
    pub(crate) fn in_units_of(self, unit: u64) -> Self {
        let rounded = |size: u64| (size / unit * unit).max(unit);
        Self { begin: rounded(self.begin), end: rounded(self.end), ..self }
    }

    /// The sizes. The end is always among them, even if the factor does not lead to it.
    pub(crate) fn iter(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.begin), move |size| size.checked_mul(self.factor))
            .take_while(move |&size| size < self.end)
            .chain([self.end])
    }

    pub(crate) fn count(self) -> usize {
        self.iter().count()
    }
}

/// Parses the size of a message, which is from 1 byte to 64 GiB.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let refused =
        || "a size is 1 to 64G: a whole number of bytes, or of K, M or G (powers of 1024)".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1u64,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => 1 << 20,
        "G" | "g" | "GiB" => 1 << 30,
        _ => return Err(refused()),
    };
    // `parse` would accept a sign.
    if !digits.bytes().all(|c| c.is_ascii_digit()) {
        return Err(refused());
    }
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| (1..=64 << 30).contains(bytes)).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Sizes = Sizes { begin: 1 << 10, end: 128 << 20, factor: 1024 };

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("1", 1), ("1000", 1000), ("1K", 1024), ("3M", 3 << 20), ("2GiB", 2 << 30), ("64G", 64 << 30)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in [
            "",
            "K",
            "0",
            "0K",
            "-1",
            "+1",
            "1.5K",
            "1T",
            "1KB",
            "65G",
            "99999999999999999999",
            "18446744073709551615G",
            "1 K",
            "é",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn both_ends_are_among_the_sizes() {
        assert_eq!(DEFAULT.iter().collect::<Vec<_>>(), [1 << 10, 1 << 20, 128 << 20]);
        assert_eq!(Sizes { factor: 2, ..DEFAULT }.count(), 18);
        assert_eq!(Sizes { end: DEFAULT.begin, ..DEFAULT }.iter().collect::<Vec<_>>(), [1 << 10]);
        let largest = Sizes { begin: 1 << 63, end: u64::MAX, factor: 2 };
        assert_eq!(largest.iter().collect::<Vec<_>>(), [1 << 63, u64::MAX]);
    }

    #[test]
    fn sizes_are_shared_out_evenly() {
        let of_three = Sizes { end: 4000, factor: 2, ..DEFAULT }.in_units_of(6);
        assert_eq!(of_three.iter().collect::<Vec<_>>(), [1020, 2040, 3996]);
        assert_eq!(Sizes { begin: 2, end: 4, factor: 2 }.in_units_of(6).iter().collect::<Vec<_>>(), [6]);
        assert_eq!(DEFAULT.in_units_of(4), DEFAULT);
    }

    #[test]
    fn one_end_alone_moves_the_other() {
        let range = |begin, end| Range { begin, end, factor: None };
        let ends = |range: Range| range.or(DEFAULT, 1).map(|sizes| (sizes.begin, sizes.end));
        assert_eq!(ends(range(None, None)), Ok((1 << 10, 128 << 20)));
        assert_eq!(ends(range(Some(1 << 30), None)), Ok((1 << 30, 1 << 30)));
        assert_eq!(ends(range(None, Some(16))), Ok((16, 16)));
        assert!(ends(range(Some(3), Some(2))).is_err());
        let odd = Range { begin: Some(12), end: Some(12), factor: None };
        assert!(odd.or(DEFAULT, 8).is_err_and(|error| error.contains("12 bytes")));
    }
}
