//! Memory of this process from which the peer's data is sent, or into which it arrives.

use std::sync::atomic::{AtomicU8, Ordering};

use mscclpp::prelude::*;

use crate::{Result, data::Memory, ranks::Ranks};

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

    fn range(&self, offset: u64, len: u64) -> Result<&[AtomicU8]> {
        let end = offset.checked_add(len).ok_or("past the end of the address space")?;
        let range = self.bytes.get(offset as usize..end as usize);
        Ok(range.ok_or_else(|| format!("bytes {offset} to {end} of {}", self.bytes.len()))?)
    }
}

impl Memory for HostMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = self.range(offset, bytes.len() as u64)?;
        range.iter().zip(bytes).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let range = self.range(offset, bytes.len() as u64)?;
        bytes.iter_mut().zip(range).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        Ok(())
    }

    fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        self.range(offset, len)?.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
        Ok(())
    }
}
