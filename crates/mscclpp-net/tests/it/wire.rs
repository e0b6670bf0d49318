//! Tests of reading bytes from outside, with bounds.

use std::net::IpAddr;

use mscclpp_net::wire::{Malformed, Wire};

fn sample() -> Vec<u8> {
    let addresses: [IpAddr; 2] = ["192.0.2.1", "fd00::1"].map(|ip| ip.parse().unwrap());
    (true, 7_u64, "grüße".to_owned(), addresses[0], addresses[1]).to_bytes()
}

fn read(bytes: &[u8]) -> Result<(bool, u64, String, [IpAddr; 2]), Malformed> {
    let (flag, number, text, one, other) = Wire::parse(bytes)?;
    Ok((flag, number, text, [one, other]))
}

#[test]
fn what_is_written_is_read() {
    let addresses = ["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    assert_eq!(read(&sample()), Ok((true, 7, "grüße".to_owned(), addresses)));
}

#[test]
fn what_is_cut_short_lengthened_or_changed_is_refused() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert_eq!(read(&bytes[..len]), Err(Malformed("it ends too early")));
    }
    assert_eq!(read(&[&bytes[..], &[0]].concat()), Err(Malformed("it is too long")));
    let with = |at: usize, byte| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        read(&bytes).unwrap_err().0
    };
    assert_eq!(with(0, 2), "a flag is neither 0 nor 1");
    assert_eq!(with(9, 255), "it ends too early");
    assert_eq!(with(18, 5), "an address is of no known family");
}

#[test]
fn long_texts_are_cut_between_characters() {
    let cut = |text: String| String::parse(&text.to_bytes()).unwrap();
    assert_eq!(cut("ü".repeat(600)), "ü".repeat(512));
    assert_eq!(cut(format!("x{}", "ü".repeat(600))), format!("x{}", "ü".repeat(511)));
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_number_that_does_not_fit_on_the_wire_is_not_cut() {
    let largest = u32::MAX as usize;
    assert_eq!(usize::parse(&largest.to_bytes()), Ok(largest));
    let panic = std::panic::catch_unwind(|| (largest + 1).to_bytes()).unwrap_err();
    let said = panic.downcast_ref::<String>().unwrap();
    assert_eq!(said, "4294967296 does not fit into four bytes, which hold 4294967295 at most");
}
