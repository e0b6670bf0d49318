//! The accesses of the host to host memory that others may access at the same time: kernels of simulated devices, a transport's
//! threads, other processes.
//!
//! All accesses are relaxed atomics: 8 bytes at a time where the address is 8-byte aligned, single bytes at the edges
//! (and where a copy's source is not aligned as its destination is, single bytes of the source).
//! So whoever polls, loads or stores 8-byte words of the same memory with atomics races with no plain access, and never
//! sees half of such a word. Order comes from elsewhere: from a stream, or from a word that is stored with release
//! ([`publish`]) after the data and loaded with acquire by the thread that polls it.
//!
//! Two accesses of *different* size that overlap and are not ordered are outside the language's memory model. A kernel
//! that polls 4 bytes while they are being copied gets what every supported CPU gives: bytes of one whole 8-byte word.
//! The device API polls only 8-byte words. Memory of another process is outside the model too; there the argument rests
//! on the CPU, for which each of these accesses is a single instruction.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::{DevicePtr, sim::races};

const WORD: usize = size_of::<u64>();

/// Copies `len` bytes with relaxed atomics; ranges that overlap give the bytes of neither.
///
/// 8-byte words of `dst` are stored whole, and loaded whole where `src` is aligned as `dst` is; the rest byte by byte.
///
/// # Safety
/// Both ranges are mapped, `dst` for writing, and nothing accesses them meanwhile other than with atomics.
pub(crate) unsafe fn copy(dst: DevicePtr, src: DevicePtr, len: u64) {
    let (dst, src) = (dst.as_mut_ptr::<u8>(), src.as_mut_ptr::<u8>());
    let congruent = (dst.addr() ^ src.addr()).is_multiple_of(WORD);
    let split = Split::of(dst, len as usize);
    for i in split.edges() {
        // SAFETY: `edges` are inside both ranges.
        unsafe { byte(dst, i).store(byte(src, i).load(Ordering::Relaxed), Ordering::Relaxed) };
    }
    for i in split.words() {
        let value = if congruent {
            // SAFETY: `words` are inside both ranges and 8-byte aligned in `dst`, so in `src`, which is congruent.
            unsafe { word(src, i).load(Ordering::Relaxed) }
        } else {
            // SAFETY: the 8 bytes of a word are inside both ranges.
            u64::from_ne_bytes(std::array::from_fn(|k| unsafe { byte(src, i + k).load(Ordering::Relaxed) }))
        };
        // SAFETY: the same as above; a word of the destination is always stored whole.
        unsafe { word(dst, i).store(value, Ordering::Relaxed) };
    }
}

/// Copies `bytes` to `dst` with relaxed atomics, its 8-byte words whole.
///
/// # Safety
/// `dst` is mapped for writing for that long, and nothing accesses it meanwhile other than with atomics.
pub unsafe fn write(dst: DevicePtr, bytes: &[u8]) {
    let dst = dst.as_mut_ptr::<u8>();
    let split = Split::of(dst, bytes.len());
    for i in split.edges() {
        // SAFETY: `edges` are inside the range.
        unsafe { byte(dst, i).store(bytes[i], Ordering::Relaxed) };
    }
    let (words, _) = bytes[split.head..].as_chunks::<WORD>();
    for (i, value) in split.words().zip(words) {
        // SAFETY: `words` are inside the range and 8-byte aligned.
        unsafe { word(dst, i).store(u64::from_ne_bytes(*value), Ordering::Relaxed) };
    }
}

/// Copies from `src` into `bytes` with relaxed atomics: its 8-byte words are loaded whole.
///
/// # Safety
/// `src` is mapped for that long, and nothing writes it meanwhile other than with atomics.
pub unsafe fn read(src: DevicePtr, bytes: &mut [u8]) {
    let src = src.as_mut_ptr::<u8>();
    let split = Split::of(src, bytes.len());
    for i in split.edges() {
        // SAFETY: `edges` are inside the range.
        bytes[i] = unsafe { byte(src, i).load(Ordering::Relaxed) };
    }
    let (words, _) = bytes[split.head..].as_chunks_mut::<WORD>();
    for (i, value) in split.words().zip(words) {
        // SAFETY: `words` are inside the range and 8-byte aligned.
        *value = unsafe { word(src, i).load(Ordering::Relaxed) }.to_ne_bytes();
    }
}

/// Sets `len` bytes to `value` with relaxed atomics.
///
/// # Safety
/// The same as [`write()`].
pub unsafe fn fill(dst: DevicePtr, len: u64, value: u8) {
    let dst = dst.as_mut_ptr::<u8>();
    let split = Split::of(dst, len as usize);
    for i in split.edges() {
        // SAFETY: `edges` are inside the range.
        unsafe { byte(dst, i).store(value, Ordering::Relaxed) };
    }
    for i in split.words() {
        // SAFETY: `words` are inside the range and 8-byte aligned.
        unsafe { word(dst, i).store(u64::from_ne_bytes([value; WORD]), Ordering::Relaxed) };
    }
}

/// Stores `value` after all earlier accesses of this thread: a thread that loads it with acquire sees them all.
///
/// # Safety
/// The same as [`write()`] for 8 bytes; `dst` is 8-byte aligned.
pub unsafe fn publish(dst: DevicePtr, value: u64) {
    // SAFETY: the caller's promise.
    races::transport_publishes(dst, value, || unsafe { store_behind(dst, value) });
}

/// Stores the value of [`publish`], without the race detector.
///
/// # Safety
/// The same as [`publish`].
pub(crate) unsafe fn store_behind(dst: DevicePtr, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { word(dst.as_mut_ptr(), 0).store(value, Ordering::Release) };
}

/// A range cut into single bytes up to the first 8-byte boundary, whole words, and single bytes from the last one on.
struct Split {
    head: usize,
    tail: usize,
    len: usize,
}

impl Split {
    fn of(start: *mut u8, len: usize) -> Self {
        let head = (start.addr().wrapping_neg() % WORD).min(len);
        let tail = head + (len - head) / WORD * WORD;
        Self { head, tail, len }
    }

    fn edges(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.head).chain(self.tail..self.len)
    }

    fn words(&self) -> impl Iterator<Item = usize> + use<> {
        (self.head..self.tail).step_by(WORD)
    }
}

/// # Safety
/// The byte is mapped, as the callers' contracts say.
unsafe fn byte<'a>(start: *mut u8, offset: usize) -> &'a AtomicU8 {
    // SAFETY: mapped, and only accessed with atomics while the reference lives, which is one statement.
    unsafe { AtomicU8::from_ptr(start.wrapping_add(offset)) }
}

/// # Safety
/// The 8 bytes are mapped, as the callers' contracts say, and aligned.
unsafe fn word<'a>(start: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: mapped and aligned, and only accessed with atomics while the reference lives, which is one statement.
    unsafe { AtomicU64::from_ptr(start.wrapping_add(offset).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ptr(bytes: &mut [u8], offset: usize) -> DevicePtr {
        DevicePtr::from_ptr(bytes[offset..].as_mut_ptr())
    }

    /// Tests every alignment of both sides with every short length. The bytes around must stay as they were.
    #[test]
    fn all_alignments_and_lengths() {
        let source: [u8; 64] = std::array::from_fn(|i| i as u8 + 1);
        for to in 0..9 {
            for from in 0..9 {
                for len in 0..40 {
                    let mut expected = [0xee; 64];
                    expected[to..to + len].copy_from_slice(&source[from..from + len]);

                    let (mut copied, mut from_bytes) = ([0xee; 64], source);
                    // SAFETY: both ranges end before 64, and the arrays are this thread's.
                    unsafe { copy(ptr(&mut copied, to), ptr(&mut from_bytes, from), len as u64) };
                    assert_eq!(copied, expected, "copy of {len} bytes from {from} to {to}");

                    let mut written = [0xee; 64];
                    // SAFETY: the same as above.
                    unsafe { write(ptr(&mut written, to), &source[from..from + len]) };
                    assert_eq!(written, expected, "write of {len} bytes from {from} to {to}");

                    let mut back = [0xee; 64];
                    // SAFETY: the same as above.
                    unsafe { read(ptr(&mut from_bytes, from), &mut back[to..to + len]) };
                    assert_eq!(back, expected, "read of {len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn fill_touches_its_range_alone() {
        for to in 0..9 {
            for len in 0..40 {
                let mut filled = [0xee; 64];
                let mut expected = filled;
                expected[to..to + len].fill(7);
                // SAFETY: the range ends before 64, and the array is this thread's.
                unsafe { fill(ptr(&mut filled, to), len as u64, 7) };
                assert_eq!(filled, expected, "fill of {len} bytes at {to}");
            }
        }
    }
}
