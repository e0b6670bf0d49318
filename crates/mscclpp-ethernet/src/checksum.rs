//! Checksums of memory that other threads may be writing at the same time.

use crc32fast::Hasher;
use mscclpp_gpu::{DevicePtr, access};

use crate::socket::Piece;

/// The checksum of a piece.
///
/// # Safety
/// The same as [`add`].
pub(crate) unsafe fn of(piece: Piece) -> u32 {
    let mut hasher = Hasher::new();
    // SAFETY: the caller promises that the piece is readable.
    unsafe { add(&mut hasher, piece) };
    hasher.finalize()
}

/// Adds a piece to a checksum.
///
/// # Safety
/// The piece must be readable.
pub(crate) unsafe fn add(hasher: &mut Hasher, piece: Piece) {
    let mut copied = [0; 4096];
    let mut at = 0;
    while at < piece.len {
        let count = copied.len().min(piece.len - at);
        // SAFETY: the range is inside the piece, which is readable.
        unsafe { access::read(DevicePtr::from_ptr(piece.after(at).start), &mut copied[..count]) };
        hasher.update(&copied[..count]);
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_alignments_and_lengths() {
        let source: [u8; 48] = std::array::from_fn(|i| i as u8 + 1);
        for from in 0..9 {
            for len in 0..39 {
                let bytes = &source[from..from + len];
                // SAFETY: the range is inside the array, which is this thread's.
                let found = unsafe { of(Piece::of(bytes)) };
                assert_eq!(found, crc32fast::hash(bytes), "{len} bytes from {from}");
            }
        }
    }

    #[test]
    fn long_ranges_are_digested_whole() {
        let bytes: Vec<u8> = (0..10_001u32).map(|i| (i * 7) as u8).collect();
        // SAFETY: the vector is readable.
        assert_eq!(unsafe { of(Piece::of(&bytes)) }, crc32fast::hash(&bytes));
    }
}
