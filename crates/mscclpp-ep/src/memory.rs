//! Device memory of a call.

use std::{fmt::Display, ops::Range};

use mscclpp::{DeviceBuffer, DevicePtr};

use crate::{Error, Result};

/// Device memory that a call reads or writes: a buffer, or a part of one. Launches keep the buffer as long as they need it.
#[derive(Debug, Clone)]
pub struct Memory {
    ptr: DevicePtr,
    bytes: u64,
    /// None for memory that a caller answers for.
    pub(crate) buffer: Option<DeviceBuffer>,
}

impl Memory {
    /// A part of `buffer`, from one byte to another.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not within the buffer.
    pub fn slice(buffer: &DeviceBuffer, bytes: Range<u64>) -> Result<Self> {
        if bytes.start > bytes.end || bytes.end > buffer.len() {
            return Err(Error::InvalidArgument(format!(
                "bytes {} to {} are not within a buffer of {} bytes",
                bytes.start,
                bytes.end,
                buffer.len()
            )));
        }
        let ptr = buffer.ptr().add(bytes.start);
        Ok(Self { ptr, bytes: bytes.end - bytes.start, buffer: Some(buffer.clone()) })
    }

    /// Memory of other code, such as that of a tensor.
    ///
    /// # Safety
    /// The device reaches `bytes` bytes from `ptr` on until each call that is given them is complete, and so does each graph in
    /// which such a call is captured.
    #[must_use]
    pub unsafe fn from_raw(ptr: DevicePtr, bytes: u64) -> Self {
        Self { ptr, bytes, buffer: None }
    }

    /// The address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address, if there are at least `least` bytes, and it is a multiple of `alignment`.
    pub(crate) fn at_least(&self, what: impl Display, least: u64, alignment: u64) -> Result<DevicePtr> {
        if self.bytes < least {
            return Err(Error::InvalidArgument(format!(
                "{what} has {} bytes of memory, and the call needs {least}",
                self.bytes
            )));
        }
        if !self.ptr.0.is_multiple_of(alignment) {
            return Err(Error::InvalidArgument(format!(
                "{what} begins at address {:#x}, which is no multiple of {alignment}",
                self.ptr.0
            )));
        }
        Ok(self.ptr)
    }

    /// The address as of [`Self::at_least`], or NULL without memory.
    pub(crate) fn optional(
        memory: Option<&Self>,
        what: &str,
        least: u64,
        alignment: u64,
    ) -> Result<DevicePtr> {
        memory.map_or(Ok(DevicePtr::NULL), |memory| memory.at_least(what, least, alignment))
    }
}

/// All of the buffer.
impl From<&DeviceBuffer> for Memory {
    fn from(buffer: &DeviceBuffer) -> Self {
        Self { ptr: buffer.ptr(), bytes: buffer.len(), buffer: Some(buffer.clone()) }
    }
}

impl From<&Memory> for Memory {
    fn from(memory: &Memory) -> Self {
        memory.clone()
    }
}
