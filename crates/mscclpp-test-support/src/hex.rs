//! Bytes as text of one line, in which processes of a test send them to each other.

use std::fmt::Write;

/// Returns two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the bytes of which [`hex`] made the text.
///
/// # Panics
/// Panics if the text is something else.
pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2);
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .unwrap_or_else(|| panic!("not hexadecimal digits of whole bytes: {text:?}"))
    };
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)), bytes);
        assert_eq!(hex(&[0, 0x1f]), "001f");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["1", "0g", "é"] {
            assert!(std::panic::catch_unwind(|| unhex(text)).is_err(), "{text}");
        }
    }
}
