//! Types of numbers, and the slices of device memory that hold them.

use std::{marker::PhantomData, ops::Range};

use bytemuck::{Pod, Zeroable};
use mscclpp::{DeviceBuffer, DevicePtr};

use crate::{Error, Result};

/// A type of numbers. Its value is that of NCCL's `ncclDataType_t`, which has no `I16` and `U16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum DataType {
    /// Signed, 1 byte.
    I8 = 0,
    /// Unsigned, 1 byte; also for bytes of any kind.
    U8 = 1,
    /// Signed, 4 bytes.
    I32 = 2,
    /// Unsigned, 4 bytes.
    U32 = 3,
    /// Signed, 8 bytes.
    I64 = 4,
    /// Unsigned, 8 bytes.
    U64 = 5,
    /// Half precision: 5 bits of exponent, 10 of fraction.
    F16 = 6,
    /// Single precision.
    F32 = 7,
    /// Double precision.
    F64 = 8,
    /// The upper half of an `F32`.
    Bf16 = 9,
    /// 4 bits of exponent, 3 of fraction; a NaN, no infinity.
    F8E4m3 = 10,
    /// 5 bits of exponent, 2 of fraction.
    F8E5m2 = 11,
    /// Signed, 2 bytes.
    I16 = 12,
    /// Unsigned, 2 bytes.
    U16 = 13,
}

impl DataType {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::I16,
        Self::U16,
    ];

    /// The size of one number, in bytes.
    ///
    /// ```
    /// assert_eq!(mscclpp_collectives::DataType::Bf16.size(), 2);
    /// ```
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::I8 | Self::U8 | Self::F8E4m3 | Self::F8E5m2 => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether its numbers are floats.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::Bf16 | Self::F8E4m3 | Self::F8E5m2)
    }
}

/// The bits of a [`DataType::F8E4m3`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4m3(pub u8);

/// The bits of a [`DataType::F8E5m2`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5m2(pub u8);

/// A number that collectives know: those of Rust of up to 8 bytes, [`F8E4m3`], [`F8E5m2`], and with feature `half`,
/// `half::f16` and `half::bf16`.
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The type that collectives know it by.
    const DATA_TYPE: DataType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($(#[$attr:meta])* $type:ty: $name:ident),* $(,)?) => { $(
        $(#[$attr])*
        const _: () = {
            assert!(size_of::<$type>() as u64 == DataType::$name.size());
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DATA_TYPE: DataType = DataType::$name;
            }
        };
    )* };
}
elements! {
    i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64, f32: F32, f64: F64,
    F8E4m3: F8E4m3, F8E5m2: F8E5m2,
    #[cfg(feature = "half")] half::f16: F16,
    #[cfg(feature = "half")] half::bf16: Bf16,
}

/// Numbers side by side in device memory. It keeps the buffer. Clones are the same memory.
///
/// ```
/// # use mscclpp::Platform;
/// # use mscclpp_collectives::DeviceSlice;
/// let gpu = Platform::Sim.gpu(0)?;
/// let slice = DeviceSlice::<f32>::new(&gpu.allocate(4096)?)?;
/// assert_eq!(slice.len(), 1024);
/// let row = slice.slice(256..512)?;
/// row.write(&[1.5; 256])?;
/// assert_eq!(slice.read()?[256], 1.5);
/// # Ok::<(), mscclpp_collectives::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceSlice<T> {
    buffer: DeviceBuffer,
    offset: u64,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T: Element> DeviceSlice<T> {
    /// All numbers that fit into `buffer`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if its bytes are more than fit into the address space of this process.
    pub fn new(buffer: &DeviceBuffer) -> Result<Self> {
        Self::at(buffer, 0, usize::try_from(buffer.len() / T::DATA_TYPE.size()).unwrap_or(usize::MAX))
    }

    /// `len` numbers from byte `offset` of `buffer` on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they go past its end, or the offset is no multiple of a number's size.
    pub fn at(buffer: &DeviceBuffer, offset: u64, len: usize) -> Result<Self> {
        let size = T::DATA_TYPE.size();
        let end = (len as u64).checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > buffer.len()) {
            return Err(Error::InvalidArgument(format!(
                "{len} numbers of {size} bytes from byte {offset} on go past the end of a buffer of {} bytes",
                buffer.len()
            )));
        }
        if !offset.is_multiple_of(size) {
            return Err(Error::InvalidArgument(format!(
                "numbers of {size} bytes cannot begin at byte {offset}; give a multiple of {size}"
            )));
        }
        Ok(Self { buffer: buffer.clone(), offset, len, of: PhantomData })
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a range past its end, or that ends before it begins.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::InvalidArgument(format!("{range:?} of a slice of {} numbers", self.len)));
        }
        let offset = self.offset + range.start as u64 * T::DATA_TYPE.size();
        Self::at(&self.buffer, offset, range.len())
    }

    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first one.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.buffer.ptr().add(self.offset)
    }

    /// The buffer that it is in.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// Copies numbers to its beginning. Blocks until they are there; it waits for no stream.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are more than fit, and those of the copy.
    pub fn write(&self, numbers: &[T]) -> Result<()> {
        self.slice(0..numbers.len())?;
        Ok(self.buffer.write(self.offset, bytemuck::cast_slice(numbers))?)
    }

    /// Copies all of them. Blocks until they are there; it waits for no stream.
    ///
    /// # Errors
    /// Those of the copy.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut numbers = vec![T::zeroed(); self.len];
        self.buffer.read(self.offset, bytemuck::cast_slice_mut(&mut numbers))?;
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use mscclpp::Platform;

    use super::*;

    #[test]
    fn slices_stay_inside() {
        let buffer = Platform::Sim.gpu(0).unwrap().allocate(64).unwrap();
        let slice = DeviceSlice::<u32>::new(&buffer).unwrap();
        assert_eq!(slice.len(), 16);
        assert!(slice.slice(4..17).is_err());
        #[allow(clippy::reversed_empty_ranges, reason = "that is what is tested")]
        let reversed = slice.slice(5..4);
        assert!(reversed.is_err());
        assert!(DeviceSlice::<u32>::at(&buffer, 2, 1).is_err());
        assert!(DeviceSlice::<u32>::at(&buffer, 64, 0).unwrap().is_empty());
        assert!(DeviceSlice::<u64>::at(&buffer, 0, usize::MAX).is_err());
        slice.slice(2..4).unwrap().write(&[7, 8]).unwrap();
        assert_eq!(slice.read().unwrap()[..5], [0, 0, 7, 8, 0]);
        assert!(slice.slice(2..4).unwrap().write(&[1, 2, 3]).is_err());
    }

    #[test]
    fn types_have_the_numbers_of_the_list() {
        for (i, data_type) in DataType::ALL.iter().enumerate() {
            assert_eq!(*data_type as usize, i);
        }
    }
}
