//! Triggers: the messages in which device threads ask their proxy for operations.

use std::{fmt, ops::BitOr};

use mscclpp_gpu::KernelParam;

use crate::{Error, MemoryId, Result, SemaphoreId, protocol::COMMIT_BIT};

/// The most semaphores that a service can have: triggers have 10 bits for them.
pub const MAX_SEMAPHORES: u32 = 1 << 10;
/// The most memories that a service can have: triggers have 9 bits for them.
pub const MAX_MEMORIES: u32 = 1 << 9;

/// The operations that a trigger asks a [`ProxyService`](crate::ProxyService) for: one or more of three.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TriggerKind(u8);

impl TriggerKind {
    /// Copy `size` bytes.
    pub const DATA: Self = Self(1);
    /// Signal the semaphore.
    pub const FLAG: Self = Self(2);
    /// Report when everything before the trigger is complete.
    pub const SYNC: Self = Self(4);

    /// Whether this kind asks for everything that `other` asks for.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether this kind asks for nothing.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for TriggerKind {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for TriggerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::DATA, "data"), (Self::FLAG, "flag"), (Self::SYNC, "sync")];
        let mut separator = "";
        for (_, name) in names.into_iter().filter(|(kind, _)| self.has(*kind)) {
            write!(f, "{separator}{name}")?;
            separator = "|";
        }
        if self.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

impl fmt::Debug for TriggerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TriggerKind({self})")
    }
}

/// A message of 128 bits from a device thread to its proxy. For a [`ProxyService`](crate::ProxyService) it consists
/// of the fields below. In a service of your own the bits may mean anything, except the top bit of the second word,
/// which belongs to the FIFO and reads as 0.
///
/// | word | bits | field |
/// | --- | --- | --- |
/// | first | 0..32 | size in bytes |
/// | | 32..64 | source offset |
/// | second | 0..32 | destination offset |
/// | | 32..41 | source memory id |
/// | | 41..50 | destination memory id |
/// | | 50..53 | [`TriggerKind`] |
/// | | 53..63 | semaphore id |
/// | | 63 | the FIFO's commit bit |
///
/// ```
/// # use mscclpp_proxy::{MemoryId, ProxyTrigger, SemaphoreId, TriggerKind};
/// let (semaphore, theirs, ours) = (SemaphoreId::from_raw(3), MemoryId::from_raw(1), MemoryId::from_raw(0));
/// let what = TriggerKind::DATA | TriggerKind::FLAG;
/// let trigger = ProxyTrigger::new(what, (theirs, 64), (ours, 0), 1024, semaphore)?;
/// assert_eq!((trigger.dst_memory(), trigger.dst_offset(), trigger.size()), (theirs, 64, 1024));
/// assert!(ProxyTrigger::new(what, (theirs, 1 << 32), (ours, 0), 1, semaphore).is_err());
/// # Ok::<(), mscclpp_proxy::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(16))]
pub struct ProxyTrigger {
    /// The first word.
    pub fst: u64,
    /// The second word.
    pub snd: u64,
}

// SAFETY: the struct holds two words, plain data, laid out as in the header.
unsafe impl KernelParam for ProxyTrigger {}

const SRC_MEMORY: u32 = 32;
const DST_MEMORY: u32 = 41;
const KIND: u32 = 50;
const SEMAPHORE: u32 = 53;

impl ProxyTrigger {
    /// Makes a trigger for a [`ProxyService`](crate::ProxyService): `dst` and `src` are each a memory id and an
    /// offset in bytes.
    ///
    /// # Errors
    /// [`Error::TriggerRange`] if a value does not fit its field.
    pub fn new(
        kind: TriggerKind,
        dst: (MemoryId, u64),
        src: (MemoryId, u64),
        size: u64,
        semaphore: SemaphoreId,
    ) -> Result<Self> {
        let fit = |field, value: u64, bits: u32| match value >> bits {
            0 => Ok(value),
            _ => Err(Error::TriggerRange { field, value, limit: 1 << bits }),
        };
        let fst = fit("size", size, 32)? | fit("source offset", src.1, 32)? << 32;
        let snd = fit("destination offset", dst.1, 32)?
            | fit("source memory id", src.0.raw().into(), 9)? << SRC_MEMORY
            | fit("destination memory id", dst.0.raw().into(), 9)? << DST_MEMORY
            | u64::from(kind.0) << KIND
            | fit("semaphore id", semaphore.raw().into(), 10)? << SEMAPHORE;
        Ok(Self { fst, snd })
    }

    /// Makes a trigger of two words. The top bit of the second word is dropped.
    #[must_use]
    pub const fn from_words([fst, snd]: [u64; 2]) -> Self {
        Self { fst, snd: snd & !COMMIT_BIT }
    }

    /// The operations that the trigger asks for.
    #[must_use]
    pub const fn kind(&self) -> TriggerKind {
        TriggerKind(field(self.snd, KIND, 3) as u8)
    }

    /// The number of bytes to copy.
    #[must_use]
    pub const fn size(&self) -> u64 {
        field(self.fst, 0, 32)
    }

    /// The offset in bytes at which the data starts in the source.
    #[must_use]
    pub const fn src_offset(&self) -> u64 {
        field(self.fst, 32, 32)
    }

    /// The offset in bytes at which the data goes in the destination.
    #[must_use]
    pub const fn dst_offset(&self) -> u64 {
        field(self.snd, 0, 32)
    }

    /// The source memory.
    #[must_use]
    pub const fn src_memory(&self) -> MemoryId {
        MemoryId::from_raw(field(self.snd, SRC_MEMORY, 9) as u32)
    }

    /// The destination memory.
    #[must_use]
    pub const fn dst_memory(&self) -> MemoryId {
        MemoryId::from_raw(field(self.snd, DST_MEMORY, 9) as u32)
    }

    /// The semaphore, which also names the connection.
    #[must_use]
    pub const fn semaphore(&self) -> SemaphoreId {
        SemaphoreId::from_raw(field(self.snd, SEMAPHORE, 10) as u32)
    }
}

const fn field(word: u64, from: u32, bits: u32) -> u64 {
    word >> from & ((1 << bits) - 1)
}

impl fmt::Display for ProxyTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes from memory {} at {} to memory {} at {}, semaphore {}",
            self.kind(),
            self.size(),
            self.src_memory(),
            self.src_offset(),
            self.dst_memory(),
            self.dst_offset(),
            self.semaphore()
        )
    }
}

impl fmt::Debug for ProxyTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyTrigger({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a trigger with these numbers as ids.
    fn trigger(
        kind: TriggerKind,
        dst: (u32, u64),
        src: (u32, u64),
        size: u64,
        semaphore: u32,
    ) -> Result<ProxyTrigger> {
        let place = |(memory, offset)| (MemoryId::from_raw(memory), offset);
        ProxyTrigger::new(kind, place(dst), place(src), size, SemaphoreId::from_raw(semaphore))
    }

    #[test]
    fn fields_come_back_at_their_limits() {
        let top = u64::from(u32::MAX);
        let all = TriggerKind::DATA | TriggerKind::FLAG | TriggerKind::SYNC;
        let full = trigger(all, (511, top), (511, top), top, 1023).unwrap();
        assert_eq!((full.size(), full.src_offset(), full.dst_offset()), (top, top, top));
        let memory = MemoryId::from_raw(511);
        assert_eq!((full.src_memory(), full.dst_memory()), (memory, memory));
        assert_eq!(full.semaphore(), SemaphoreId::from_raw(1023));
        assert_eq!((full.kind(), full.fst, full.snd), (all, u64::MAX, u64::MAX >> 1));
        let single = trigger(TriggerKind::FLAG, (1, 2), (3, 4), 5, 6).unwrap();
        assert_eq!(single.to_string(), "flag of 5 bytes from memory 3 at 4 to memory 1 at 2, semaphore 6");
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let refused = |dst, src, size, semaphore| {
            trigger(TriggerKind::DATA, dst, src, size, semaphore).unwrap_err().to_string()
        };
        assert!(refused((512, 0), (0, 0), 1, 0).contains("destination memory id 512"));
        assert!(refused((0, 1 << 32), (0, 0), 1, 0).contains("destination offset 4294967296"));
        assert!(refused((0, 0), (512, 0), 1, 0).contains("source memory id 512"));
        assert!(refused((0, 0), (0, 1 << 40), 1, 0).contains("source offset"));
        assert!(refused((0, 0), (0, 0), 1 << 32, 0).contains("size 4294967296"));
        assert!(refused((0, 0), (0, 0), 1, 1024).contains("semaphore id 1024"));
    }
}
