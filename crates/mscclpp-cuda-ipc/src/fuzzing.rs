//! The parsers of bytes from outside, for fuzz targets.

use crate::message::{EndpointBlob, RegionBlob, Reply, Request};

/// Gives `bytes` to every parser of this crate.
pub fn parse_everything(bytes: &[u8]) {
    let _ = Request::decode(bytes);
    let _ = Reply::decode(bytes);
    let _ = EndpointBlob::decode(bytes);
    let _ = RegionBlob::decode(bytes, bytes.len() as u64);
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_bytes_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for round in 0..10_000usize {
            let bytes: Vec<u8> = (0..round % 160)
                .map(|i| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Half of them begin as the real ones do.
                    if round % 2 == 0 && i < 5 { b"MSCI\x01"[i] } else { (state >> 56) as u8 }
                })
                .collect();
            super::parse_everything(&bytes);
        }
    }
}
