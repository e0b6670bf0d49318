//! Device memory in which the kernels of a test leave their results.

use mscclpp::prelude::*;

pub(crate) struct Results(DeviceBuffer);

impl Results {
    /// Allocates so many bytes, all zero.
    pub(crate) fn new(gpu: &Gpu, bytes: u64) -> mscclpp::Result<Self> {
        let results = Self(gpu.allocate(bytes)?);
        results.clear();
        Ok(results)
    }

    pub(crate) fn at(&self, offset: u64) -> DevicePtr {
        self.0.ptr().add(offset)
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.0.read(offset, &mut word).expect("results");
        u64::from_ne_bytes(word)
    }

    /// Returns the word, and sets it to 0.
    pub(crate) fn take_word(&self, offset: u64) -> u64 {
        let word = self.word(offset);
        self.0.fill(offset, 8, 0).expect("results");
        word
    }

    pub(crate) fn clear(&self) {
        self.0.fill(0, self.0.len(), 0).expect("results");
    }
}
