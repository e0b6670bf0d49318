//! Bytes from outside, read with bounds.

use std::net::IpAddr;

use mscclpp_net::wire::{Malformed, Reader, put_ip, put_text};

fn sample() -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(7_u64.to_le_bytes());
    put_text(&mut bytes, "grüße");
    put_ip(&mut bytes, &"192.0.2.1".parse().unwrap());
    put_ip(&mut bytes, &"fd00::1".parse().unwrap());
    bytes
}

fn read(bytes: &[u8]) -> Result<(bool, u64, String, [IpAddr; 2]), Malformed> {
    let mut reader = Reader::new(bytes);
    let value = (reader.flag()?, reader.u64()?, reader.text()?, [reader.ip()?, reader.ip()?]);
    reader.end()?;
    Ok(value)
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
    let mut bytes = Vec::new();
    put_text(&mut bytes, &"ü".repeat(600));
    assert_eq!(Reader::new(&bytes).text().unwrap(), "ü".repeat(512));
    bytes.clear();
    put_text(&mut bytes, &format!("x{}", "ü".repeat(600)));
    assert_eq!(Reader::new(&bytes).text().unwrap(), format!("x{}", "ü".repeat(511)));
}
