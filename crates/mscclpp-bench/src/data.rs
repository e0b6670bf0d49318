//! Random data, memory of the host, and the check that data arrived.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::prelude::*;

/// The byte with which a destination is filled before data arrives.
const POISON: u8 = 0xa5;
/// The number of bytes on both sides of a destination that must not change.
pub(crate) const GUARD: u64 = 256;
/// The number of bytes that are read back at a time.
const CHUNK: usize = 16 << 20;

/// A random seed, so that runs have different data.
pub(crate) fn fresh_seed() -> u64 {
    fastrand::u64(..)
}

pub(crate) fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Memory from which or to which data is moved.
pub(crate) trait Memory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        self.write(offset, &vec![value; len as usize])
    }
}

impl Memory for DeviceBuffer {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.write(offset, bytes)?)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(self.read(offset, bytes)?)
    }

    fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        Ok(self.fill(offset, len, value)?)
    }
}

/// Host memory that is accessed only through atomics, because the transport's threads write to it at any time. It is never
/// freed, so that these threads write to no other memory even after an error.
pub(crate) struct HostMemory {
    pub(crate) bytes: &'static [AtomicU8],
}

impl HostMemory {
    pub(crate) fn new(len: u64) -> Self {
        let bytes: Box<[AtomicU8]> = (0..len).map(|_| AtomicU8::new(0)).collect();
        Self { bytes: Box::leak(bytes) }
    }

    pub(crate) fn register(&self, ranks: &Ranks, transport: Transport) -> Result<RegisteredMemory> {
        let (start, len) = (DevicePtr::from_ptr(self.bytes.as_ptr()), self.bytes.len() as u64);
        // SAFETY: the memory is never freed, and this process accesses it with atomics alone.
        Ok(unsafe { ranks.comm.register_memory(start, len, transport)? })
    }
}

impl Memory for HostMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = &self.bytes[offset as usize..][..bytes.len()];
        to.iter().zip(bytes).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let from = &self.bytes[offset as usize..][..bytes.len()];
        bytes.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        Ok(())
    }
}

/// A place in a memory at which data is to arrive, with [`GUARD`] bytes on both sides of it.
pub(crate) struct Destination<'a> {
    pub(crate) memory: &'a dyn Memory,
    pub(crate) offset: u64,
}

impl Destination<'_> {
    /// Fills the place of `len` bytes and its guards with a pattern that the data does not have.
    pub(crate) fn poison(&self, len: u64) -> Result<()> {
        self.memory.fill(self.offset - GUARD, len + 2 * GUARD, POISON)
    }

    /// Whether `expected` is in the place, and the guards have not changed.
    pub(crate) fn holds(&self, expected: &[u8]) -> Result<bool> {
        self.holds_like(expected, |found, expected| found == expected)
    }

    /// Whether the place has bytes that are equivalent to `expected` according to `like`, and the guards have not changed.
    /// `like` is called for one chunk after the other, each of whole numbers.
    pub(crate) fn holds_like(&self, expected: &[u8], like: impl Fn(&[u8], &[u8]) -> bool) -> Result<bool> {
        let mut chunk = vec![0; CHUNK.min(expected.len())];
        for (n, expected) in expected.chunks(CHUNK).enumerate() {
            let chunk = &mut chunk[..expected.len()];
            self.memory.read(self.offset + (n * CHUNK) as u64, chunk)?;
            if !like(chunk, expected) {
                return Ok(false);
            }
        }
        let mut guard = [0; GUARD as usize];
        for offset in [self.offset - GUARD, self.offset + expected.len() as u64] {
            self.memory.read(offset, &mut guard)?;
            if guard != [POISON; GUARD as usize] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes one byte of the data wrong.
    pub(crate) fn spoil(&self, len: u64) -> Result<()> {
        let at = self.offset + len / 2;
        let mut byte = [0];
        self.memory.read(at, &mut byte)?;
        self.memory.write(at, &[!byte[0]])
    }
}

#[cfg(test)]
mod tests {
    use mscclpp::Platform;

    use super::*;

    #[test]
    fn seeds_give_different_bytes_of_any_length() {
        let bytes = random_bytes(1, 37);
        assert_eq!(bytes.len(), 37);
        assert_eq!(bytes[..32], random_bytes(1, 32));
        assert_ne!(bytes, random_bytes(2, 37));
        assert!(random_bytes(3, 0).is_empty());
        assert_ne!(fresh_seed(), fresh_seed());
    }

    #[test]
    fn a_wrong_byte_anywhere_is_noticed() -> Result<()> {
        for len in [1usize, 8, 1000, CHUNK + 3] {
            let buffer = Platform::Sim.gpu(0)?.allocate(len as u64 + 2 * GUARD + 64)?;
            let destination = Destination { memory: &buffer, offset: GUARD + 64 };
            let expected = random_bytes(7, len);
            destination.poison(len as u64)?;
            assert!(len == 1 || !destination.holds(&expected)?, "nothing has arrived");
            buffer.write(destination.offset, &expected)?;
            assert!(destination.holds(&expected)?);

            destination.spoil(len as u64)?;
            assert!(!destination.holds(&expected)?, "a wrong byte in the middle of {len}");
            destination.spoil(len as u64)?;
            for wrong in [0, len as u64 - 1] {
                buffer.write(destination.offset + wrong, &[!expected[wrong as usize]])?;
                assert!(!destination.holds(&expected)?, "byte {wrong} of {len} is wrong");
                buffer.write(destination.offset, &expected)?;
            }
            for outside in [destination.offset - 1, destination.offset + len as u64] {
                buffer.write(outside, &[0])?;
                assert!(!destination.holds(&expected)?, "a byte beside {len} was written");
                buffer.write(outside, &[POISON])?;
            }
            assert!(destination.holds(&expected)?);
        }
        Ok(())
    }
}
