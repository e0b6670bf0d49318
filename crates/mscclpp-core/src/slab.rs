//! The memory of semaphores: blocks cut from slabs, never used twice.
//!
//! Device memory comes in chunks of 2 MiB, a semaphore needs half a KiB, so many semaphores share a slab, which is
//! registered and mapped by each peer once. Semaphores of endpoints on the CPU have theirs in host memory. A
//! transport may ask for inbound tokens outside the device; words that only kernels write stay on the device even
//! then. A block is not handed out again after its semaphore is gone: a peer that still signals it writes into memory
//! that nobody reads, never into the token of a newer semaphore. A slab is freed with its last block.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use mscclpp_gpu::{DeviceBuffer, DevicePtr, Gpu, PinnedBuffer};
use parking_lot::Mutex;

use crate::{RegisteredMemory, Result, Transport, protocol::StatusWords, provider::TokenMemory};

/// The bytes of a token block: four lines of 128 bytes, so that no two words with different writers share a line.
pub(crate) const TOKEN_BLOCK: u64 = 512;
/// The offset of the inbound token in its block, two words: peers' GPUs add to the first, peers' links write the
/// second.
pub(crate) const INBOUND: u64 = 0;
/// The offset of the inbound token's second word.
pub(crate) const INBOUND_BY_LINK: u64 = INBOUND + 8;
/// The offset of the count of claimed tokens: this side's waits write this line.
pub(crate) const EXPECTED: u64 = 128;
/// The offset of the lock and count of outgoing signals: this side's signals write this line if atomics do not reach
/// the peer.
pub(crate) const OUTBOUND: u64 = 256;

/// The bytes of a page. How fast a token in device memory is reached may depend on its page.
pub(crate) const TOKEN_PAGE: u64 = 4096;

/// The bytes of a slab in device memory, and of one elsewhere.
pub(crate) const TOKEN_SLAB: u64 = 2 << 20;
pub(crate) const HOST_TOKEN_SLAB: u64 = 64 << 10;
const STATUS_BLOCK: u64 = 64;
const STATUS_SLAB: u64 = 64 << 10;

/// The slabs of a context that have room left.
#[derive(Default)]
pub(crate) struct Slabs {
    tokens: Mutex<HashMap<TokenKey, Slab<TokenSlab>>>,
    status: Mutex<HashMap<usize, Slab<PinnedBuffer<AtomicU32>>>>,
}

/// A device and the kind of its memory, or `None` for the host; and a transport.
type TokenKey = (Option<(usize, TokenMemory)>, Transport);

struct Slab<M> {
    memory: M,
    len: u64,
    used: u64,
}

/// A slab of which token blocks are cut.
#[derive(Clone)]
pub(crate) struct TokenSlab {
    /// The memory that holds the inbound tokens.
    pub(crate) memory: RegisteredMemory,
    pub(crate) len: u64,
    /// Device memory, as large as `memory`, for the words that only kernels write; only if `memory` is no device
    /// memory.
    pub(crate) beside: Option<DeviceBuffer>,
    /// The words of `memory` again, if this process allocated it as host memory.
    pub(crate) host: Option<Arc<HostWords>>,
}

/// The size of a block to be cut from a slab, and the number that its offset must be a multiple of.
#[derive(Clone, Copy)]
struct Block {
    len: u64,
    alignment: u64,
}

/// The memory of one semaphore: zeroed, with a part that its peer writes.
#[derive(Clone)]
pub(crate) struct TokenBlock {
    slab: TokenSlab,
    pub(crate) offset: u64,
    /// Whether a semaphore uses the block already.
    taken: Arc<AtomicBool>,
}

/// The words by which the host and waits notify each other: pinned host memory, or for an endpoint on the CPU any
/// memory.
#[derive(Clone)]
pub(crate) enum StatusBlock {
    Pinned { slab: PinnedBuffer<AtomicU32>, offset: u64 },
    Host(Arc<[AtomicU32; 4]>),
}

impl Slabs {
    /// Returns a block at a multiple of `alignment` in its slab. `make` makes a new slab.
    pub(crate) fn token(
        &self,
        place: Option<(&Gpu, TokenMemory)>,
        transport: Transport,
        alignment: u64,
        make: impl FnOnce() -> Result<TokenSlab>,
    ) -> Result<TokenBlock> {
        let block = Block { len: TOKEN_BLOCK, alignment };
        let make = || make().map(|slab| (slab.clone(), slab.len));
        let key = (place.map(|(gpu, memory)| (gpu.id(), memory)), transport);
        let (slab, offset) = cut(&mut self.tokens.lock(), key, block, make)?;
        Ok(TokenBlock { slab, offset, taken: Arc::default() })
    }

    pub(crate) fn status(&self, gpu: Option<&Gpu>) -> Result<StatusBlock> {
        let Some(gpu) = gpu else { return Ok(StatusBlock::Host(Arc::default())) };
        let mut slabs = self.status.lock();
        let (slab, offset) =
            cut(&mut slabs, gpu.id(), Block { len: STATUS_BLOCK, alignment: STATUS_BLOCK }, || {
                Ok((gpu.allocate_pinned_words(STATUS_SLAB)?, STATUS_SLAB))
            })?;
        Ok(StatusBlock::Pinned { slab, offset })
    }
}

/// Returns the next block of a size and alignment of the slab of `key`, from a new slab if there is none or it is
/// used up. `allocate` returns a new slab and its length.
fn cut<K: Eq + std::hash::Hash, M: Clone>(
    slabs: &mut HashMap<K, Slab<M>>,
    key: K,
    block: Block,
    allocate: impl FnOnce() -> Result<(M, u64)>,
) -> Result<(M, u64)> {
    if let Some(slab) = slabs.get_mut(&key) {
        let offset = slab.used.next_multiple_of(block.alignment);
        if offset + block.len <= slab.len {
            slab.used = offset + block.len;
            return Ok((slab.memory.clone(), offset));
        }
    }
    let (memory, len) = allocate()?;
    slabs.insert(key, Slab { memory: memory.clone(), len, used: block.len });
    Ok((memory, 0))
}

impl TokenBlock {
    /// Marks the block as used by a semaphore. Returns true the first time.
    pub(crate) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }

    /// The memory that holds the block's inbound token.
    pub(crate) fn memory(&self) -> &RegisteredMemory {
        &self.slab.memory
    }

    /// The address at which kernels of this side find the word at `offset` bytes of the block.
    pub(crate) fn word(&self, offset: u64) -> DevicePtr {
        let base = match &self.slab.beside {
            Some(beside) if offset >= EXPECTED => beside.ptr(),
            _ => self.slab.memory.data().unwrap_or_default(),
        };
        base.add(self.offset + offset)
    }

    /// The word at `offset` bytes of the block, for a semaphore of an endpoint on the CPU.
    pub(crate) fn host_word(&self, offset: u64) -> Option<&AtomicU64> {
        self.slab.host.as_ref()?.word(self.offset + offset)
    }
}

impl StatusBlock {
    /// The address at which kernels find the words; null for a semaphore that no kernel waits on.
    pub(crate) fn ptr(&self) -> DevicePtr {
        match self {
            Self::Pinned { slab, offset } => slab.ptr().add(*offset),
            Self::Host(_) => DevicePtr::NULL,
        }
    }

    pub(crate) fn words(&self) -> Result<StatusWords<'_, AtomicU32>> {
        Ok(StatusWords {
            abort: self.word(0)?,
            timed_out: self.word(1)?,
            aborted: self.word(2)?,
            refused: self.word(3)?,
        })
    }

    fn word(&self, index: u64) -> Result<&AtomicU32> {
        match self {
            Self::Pinned { slab, offset } => Ok(slab.word(offset + 4 * index)?),
            Self::Host(words) => Ok(&words[index as usize % words.len()]),
        }
    }
}

/// Words of host memory that transports write into.
#[derive(Debug)]
pub(crate) struct HostWords(Box<[Line]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; 16]);

impl HostWords {
    pub(crate) fn zeroed(len: u64) -> Self {
        Self((0..len / 128).map(|_| Line::default()).collect())
    }

    /// The address of the words, from which transports make pointers. The words are atomics, so a pointer derived
    /// from the shared reference here may write all of them.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn len(&self) -> u64 {
        128 * self.0.len() as u64
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.0.get((offset / 128) as usize).map(|line| &line.0[(offset % 128 / 8) as usize])
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
            let got = cut(&mut slabs, 0, Block { len: 64, alignment: 64 }, || {
                next += 1;
                Ok((next, 256))
            })
            .unwrap();
            assert!(got.1 + 64 <= 256 && seen.insert(got));
        }
        assert_eq!(next, 25);
    }

    #[test]
    fn aligned_blocks_have_only_later_ones_beside_them() {
        let mut slabs: HashMap<u8, Slab<u64>> = HashMap::new();
        let mut slab = 0;
        let mut offset = |alignment| {
            let new = || {
                slab += 1;
                Ok((slab, 1024))
            };
            cut(&mut slabs, 0, Block { len: 64, alignment }, new).unwrap()
        };
        let got = [64, 256, 256, 64, 64, 256, 256, 64].map(&mut offset);
        assert_eq!(got, [(1, 0), (1, 256), (1, 512), (1, 576), (1, 640), (1, 768), (2, 0), (2, 64)]);
    }
}
