//! How this process touches registered host memory that other threads may be touching at the same time.
//!
//! Data is copied with relaxed atomics, 8 bytes at a time where the address is 8-byte aligned, and single bytes at the
//! edges. What the system copies is outside the language's memory model. Order comes from [`publish`], a release store
//! by the thread that placed the data, made after it: a thread that loads the word with acquire and sees the value sees
//! the data.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crc32fast::Hasher;

const WORD: usize = 8;

/// Copies `bytes` to `dst`.
///
/// # Safety
/// `dst` must be writable for that long, and only be accessed with atomics meanwhile.
pub(crate) unsafe fn place(dst: *mut u8, bytes: &[u8]) {
    let head = (dst.addr().wrapping_neg() % WORD).min(bytes.len());
    let (edge, rest) = bytes.split_at(head);
    let (words, tail) = rest.as_chunks::<WORD>();
    let byte = |at: usize, value: u8| {
        // SAFETY: `at` is inside the range, as all edges are.
        unsafe { AtomicU8::from_ptr(dst.wrapping_add(at)) }.store(value, Ordering::Relaxed);
    };
    for (at, value) in edge.iter().enumerate() {
        byte(at, *value);
    }
    for (i, word) in words.iter().enumerate() {
        // SAFETY: behind `head` bytes the address is aligned, and all words are inside the range.
        let place = unsafe { AtomicU64::from_ptr(dst.wrapping_add(head + i * WORD).cast()) };
        place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    for (at, value) in tail.iter().enumerate() {
        byte(head + words.len() * WORD + at, *value);
    }
}

/// Adds the `len` bytes at `src` to a checksum.
///
/// # Safety
/// `src` must be readable for that long.
pub(crate) unsafe fn digest(hasher: &mut Hasher, src: *const u8, len: usize) {
    let mut copied = [0; 4096];
    let mut at = 0;
    while at < len {
        let count = copied.len().min(len - at);
        // SAFETY: inside the range.
        unsafe { take(&mut copied[..count], src.wrapping_add(at)) };
        hasher.update(&copied[..count]);
        at += count;
    }
}

/// Copies from `src` into `bytes`.
///
/// # Safety
/// `src` must be readable for that long.
unsafe fn take(bytes: &mut [u8], src: *const u8) {
    let head = (src.addr().wrapping_neg() % WORD).min(bytes.len());
    let byte = |at: usize| {
        // SAFETY: `at` is inside the range, as all edges are. An atomic load only reads.
        unsafe { AtomicU8::from_ptr(src.wrapping_add(at).cast_mut()) }.load(Ordering::Relaxed)
    };
    let (edge, rest) = bytes.split_at_mut(head);
    for (at, value) in edge.iter_mut().enumerate() {
        *value = byte(at);
    }
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: behind `head` bytes the address is aligned, and all words are inside the range.
        let from = unsafe { AtomicU64::from_ptr(src.wrapping_add(head + i * WORD).cast_mut().cast()) };
        *word = from.load(Ordering::Relaxed).to_ne_bytes();
    }
    for (at, value) in tail.iter_mut().enumerate() {
        *value = byte(head + words.len() * WORD + at);
    }
}

/// Stores `value` after everything that this thread has placed: a thread that loads it with acquire sees all of that.
///
/// # Safety
/// `dst` must be writable for 8 bytes, 8-byte aligned, and only be accessed with atomics meanwhile.
pub(crate) unsafe fn publish(dst: *mut u8, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(dst.cast()) }.store(value, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_alignments_and_lengths() {
        let source: [u8; 48] = std::array::from_fn(|i| i as u8 + 1);
        for to in 0..9 {
            for from in 0..9 {
                for len in 0..39 {
                    let mut placed = [0xee; 64];
                    // SAFETY: `to + len` is less than 64, and the array is this thread's.
                    unsafe { place(placed[to..].as_mut_ptr(), &source[from..from + len]) };
                    let mut expected = [0xee; 64];
                    expected[to..to + len].copy_from_slice(&source[from..from + len]);
                    assert_eq!(placed, expected, "{len} bytes from {from} to {to}");

                    let mut hasher = Hasher::new();
                    // SAFETY: as above.
                    unsafe { digest(&mut hasher, placed[to..].as_ptr(), len) };
                    assert_eq!(hasher.finalize(), crc32fast::hash(&source[from..from + len]));
                }
            }
        }
    }

    #[test]
    fn long_ranges_are_digested_whole() {
        let bytes: Vec<u8> = (0..10_001u32).map(|i| (i * 7) as u8).collect();
        let mut hasher = Hasher::new();
        // SAFETY: the vector's bytes.
        unsafe { digest(&mut hasher, bytes.as_ptr(), bytes.len()) };
        assert_eq!(hasher.finalize(), crc32fast::hash(&bytes));
    }
}
