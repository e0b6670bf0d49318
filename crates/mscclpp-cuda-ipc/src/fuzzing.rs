//! The parsers of bytes from outside, for fuzz targets. Not part of the API.

use crate::message::{EndpointBlob, Handle, RegionBlob, Request};

/// Lengths that a region may claim to have.
const LENGTHS: [u64; 5] = [0, 1, 60, 1 << 40, u64::MAX];

/// Passes `bytes` to every parser of this crate. Returns how many parsers accepted them.
///
/// # Panics
/// Panics if a parser accepted bytes and its result, encoded again, differs from them.
pub fn parse_everything(bytes: &[u8]) -> usize {
    let mut good = usize::from(Request::decode(bytes).is_ok()) + usize::from(Handle::decode(bytes).is_ok());
    if let Ok(endpoint) = EndpointBlob::decode(bytes) {
        assert_eq!(endpoint.encode(), bytes);
        good += 1;
    }
    for len in LENGTHS {
        if let Ok(region) = RegionBlob::decode(bytes, len) {
            assert_eq!(region.encode(), bytes);
            assert!(u128::from(region.offset) + u128::from(len) <= u128::from(region.allocation_size));
            good += 1;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use mscclpp_test_support::Random;

    use super::*;
    use crate::message::Refusal;

    /// Returns one of each message that this crate sends.
    fn sent() -> Vec<Vec<u8>> {
        let address = "mscclpp-0123456789abcdef0123456789abcdef".to_owned();
        let (token, allocation_size) = ([0x5a; 16], 1 << 21);
        let handles = [Handle::None, Handle::FileDescriptor, Handle::Ipc([3; 64]), Handle::Fabric([4; 64])];
        let mut sent = vec![
            Request::Link { token, from: 7 }.encode(),
            Request::Fetch { token, id: 77 }.encode(),
            Handle::encode(Err(Refusal::Unknown)),
            EndpointBlob { token, name: 7, address: address.clone() }.encode(),
            RegionBlob { token, allocation: u64::MAX - 77, allocation_size, offset: 4096, address }.encode(),
        ];
        sent.extend(handles.map(|handle| Handle::encode(Ok(handle))));
        sent
    }

    /// Changes a message: cuts it, lengthens it, flips bits, or puts in numbers at which sums overflow.
    fn change(bytes: &mut Vec<u8>, random: &mut Random) {
        const NUMBERS: [u64; 5] = [0, 1, 1 << 63, u64::MAX - 4095, u64::MAX];
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let len = random.below(100);
                bytes.extend(random.bytes(len));
            }
            2 if at + 8 <= bytes.len() => {
                bytes[at..at + 8].copy_from_slice(&NUMBERS[random.below(NUMBERS.len())].to_le_bytes());
            }
            3 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            _ if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }

    #[test]
    fn what_is_sent_is_taken_and_nothing_that_is_cut_or_of_another_version() {
        for bytes in sent() {
            let refusal = bytes == Handle::encode(Err(Refusal::Unknown));
            assert_eq!(parse_everything(&bytes) == 0, refusal, "{bytes:?}");
            let version = if bytes.starts_with(b"MSCI") { 4 } else { 0 };
            for other in (0..=255).filter(|other| *other != bytes[version]) {
                let mut changed = bytes.clone();
                changed[version] = other;
                assert_eq!(parse_everything(&changed), 0, "of version {other}: {changed:?}");
            }
            // A socket name may be shorter; everything before it must be there.
            let fixed = bytes.windows(8).position(|window| window == b"mscclpp-").unwrap_or(bytes.len());
            for len in 0..fixed {
                // A region that is cut could be read as an endpoint if its numbers happened to be letters; here they
                // are not.
                assert_eq!(parse_everything(&bytes[..len]), 0, "{len} bytes of {bytes:?}");
            }
        }
    }

    #[test]
    fn changed_messages_never_panic() {
        let (mut random, mut good, sent) = (Random::with_seed(1), 0, sent());
        for round in 0..50_000 {
            let mut bytes = sent[round % sent.len()].clone();
            for _ in 0..1 + random.below(3) {
                change(&mut bytes, &mut random);
            }
            good += usize::from(parse_everything(&bytes) > 0);
        }
        // This shows that the rejected messages are not all rejected early.
        assert!(good > 10_000, "only {good} of 50000 changed messages were good ones");
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random::with_seed(2);
        for round in 0..10_000 {
            let bytes = random.bytes(round % 160);
            parse_everything(&bytes);
        }
    }
}
