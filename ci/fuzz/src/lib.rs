//! The check that the targets of mscclpp-core share: it makes bytes to read from the input, and checks the result.

#![forbid(unsafe_code)]

use mscclpp_core::Error;

/// Reads the input as it is, and as the content of an envelope of that kind, which the fuzzer would take long to find.
///
/// # Panics
/// If the error is not `Malformed`, or if the value that was read serializes to other bytes.
pub fn check(input: &[u8], kind: u16, read: impl Fn(&[u8]) -> Result<Vec<u8>, Error>) {
    let envelope = [
        b"MSCP".as_slice(),
        &2u16.to_le_bytes(),
        &kind.to_le_bytes(),
        &u32::try_from(input.len()).unwrap_or(u32::MAX).to_le_bytes(),
        input,
    ]
    .concat();
    for bytes in [input, &envelope] {
        match read(bytes) {
            Ok(again) => assert_eq!(again, bytes, "what was read is not what was there"),
            Err(Error::Malformed { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
