//! Where semaphores get their words from: blocks cut from slabs, never used twice.
//!
//! Device memory comes in pieces of 2 MiB, a semaphore needs half a KiB, so many share a slab, which is registered and
//! mapped by each peer once. A block is not handed out again after its semaphore is gone: a peer that still signals it
//! writes into memory that nobody reads, never into the token of a newer semaphore. A slab is freed with its last
//! block.

use std::collections::HashMap;

use mscclpp_gpu::{DevicePtr, Gpu, PinnedBuffer};
use parking_lot::Mutex;

use crate::{Context, RegisteredMemory, Result, Transport};

/// Bytes of a token block: four lines of 128 bytes, so that no two words with different writers share one.
pub(crate) const TOKEN_BLOCK: u64 = 512;
/// Where the inbound token is in its block: peers' GPUs write this line.
pub(crate) const INBOUND: u64 = 0;
/// Where the count of claimed tokens is: own waits write this line.
pub(crate) const EXPECTED: u64 = 128;
/// Where the lock and count of outgoing signals are: own signals write this line, where peer atomics are missing.
pub(crate) const OUTBOUND: u64 = 256;

const TOKEN_SLAB: u64 = 2 << 20;
const STATUS_BLOCK: u64 = 64;
const STATUS_SLAB: u64 = 64 << 10;

/// The slabs of a context that have room left.
#[derive(Default)]
pub(crate) struct Slabs {
    tokens: Mutex<HashMap<(usize, Transport), Slab<RegisteredMemory>>>,
    status: Mutex<HashMap<usize, Slab<PinnedBuffer>>>,
}

struct Slab<M> {
    memory: M,
    used: u64,
}

/// Device memory of one semaphore: zeroed, with a part that its peer writes.
#[derive(Clone)]
pub(crate) struct TokenBlock {
    pub(crate) slab: RegisteredMemory,
    pub(crate) offset: u64,
    pub(crate) ptr: DevicePtr,
}

/// Pinned host memory of one semaphore: what host and kernels tell each other about waits.
#[derive(Clone)]
pub(crate) struct StatusBlock {
    slab: PinnedBuffer,
    offset: u64,
}

impl Slabs {
    pub(crate) fn token(&self, context: &Context, gpu: &Gpu, transport: Transport) -> Result<TokenBlock> {
        cut(&mut self.tokens.lock(), (gpu.id(), transport), TOKEN_BLOCK, TOKEN_SLAB, |len| {
            context.register_buffer(&gpu.allocate(len)?, transport)
        })
        .map(|(slab, offset)| {
            let ptr = slab.data().unwrap_or_default().add(offset);
            TokenBlock { slab, offset, ptr }
        })
    }

    pub(crate) fn status(&self, gpu: &Gpu) -> Result<StatusBlock> {
        cut(&mut self.status.lock(), gpu.id(), STATUS_BLOCK, STATUS_SLAB, |len| Ok(gpu.allocate_pinned(len)?))
            .map(|(slab, offset)| StatusBlock { slab, offset })
    }
}

/// The next block of the slab of `key`, from a new slab if there is none or it is used up.
fn cut<K: Eq + std::hash::Hash, M: Clone>(
    slabs: &mut HashMap<K, Slab<M>>,
    key: K,
    block: u64,
    slab_len: u64,
    allocate: impl FnOnce(u64) -> Result<M>,
) -> Result<(M, u64)> {
    if let Some(slab) = slabs.get_mut(&key)
        && slab.used + block <= slab_len
    {
        slab.used += block;
        return Ok((slab.memory.clone(), slab.used - block));
    }
    let memory = allocate(slab_len)?;
    slabs.insert(key, Slab { memory: memory.clone(), used: block });
    Ok((memory, 0))
}

impl StatusBlock {
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.slab.ptr().add(self.offset)
    }

    pub(crate) fn word(&self, index: u64) -> Result<&std::sync::atomic::AtomicU32> {
        Ok(self.slab.word(self.offset + 4 * index)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_never_handed_out_twice() {
        let mut slabs: HashMap<u8, Slab<u64>> = HashMap::new();
        let mut next = 0;
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let got = cut(&mut slabs, 0, 64, 256, |_| {
                next += 1;
                Ok(next)
            })
            .unwrap();
            assert!(got.1 + 64 <= 256 && seen.insert(got));
        }
        assert_eq!(next, 25);
    }
}
