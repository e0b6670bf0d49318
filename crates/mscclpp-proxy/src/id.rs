//! The numbers that services and FIFOs give out. Each kind has its own type, so that one is not taken for another.

use std::{fmt, ops::Add};

use mscclpp_gpu::KernelParam;

/// The number of a semaphore of a [`ProxyService`](crate::ProxyService), in the order in which they were added.
///
/// ```
/// # use mscclpp_proxy::SemaphoreId;
/// let id = SemaphoreId::from_raw(3); // usually from ProxyService::add_semaphore
/// assert_eq!((id.raw(), id.to_string()), (3, "3".to_owned()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, KernelParam)]
#[repr(transparent)]
pub struct SemaphoreId(u32);

/// The number of a memory of a [`ProxyService`](crate::ProxyService), in the order in which they were added. The next
/// memories have `id + 1`, `id + 2` ...
///
/// ```
/// # use mscclpp_proxy::MemoryId;
/// let first = MemoryId::from_raw(4); // usually from ProxyService::add_memory
/// assert_eq!(first + 2, MemoryId::from_raw(6));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, KernelParam)]
#[repr(transparent)]
pub struct MemoryId(u32);

/// The position of a trigger in a [`Fifo`](crate::Fifo): how many triggers were pushed before it since the FIFO was made. In
/// a kernel, it is the `uint64_t` that `push` returns.
///
/// ```
/// # use mscclpp_proxy::FifoPosition;
/// let first = FifoPosition::from_raw(0);
/// assert!(first < first + 1);
/// assert_eq!((first + 511).raw(), 511);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, KernelParam)]
#[repr(transparent)]
pub struct FifoPosition(u64);

/// Implements what all number types can do.
macro_rules! numbers {
    ($($id:ident($number:ident), $of:literal, $where:literal;)*) => {
        $(
            impl $id {
                #[doc = concat!("The ", $of, ".")]
                #[must_use]
                pub const fn from_raw(number: $number) -> Self {
                    Self(number)
                }

                #[doc = concat!("The number, as it stands in ", $where, ".")]
                #[must_use]
                pub const fn raw(self) -> $number {
                    self.0
                }
            }

            impl fmt::Display for $id {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }

            impl fmt::Debug for $id {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, concat!(stringify!($id), "({})"), self.0)
                }
            }
        )*
    };
}

numbers! {
    SemaphoreId(u32), "semaphore with this number, which a service may or may not have", "kernels and triggers";
    MemoryId(u32), "memory with this number, which a service may or may not have", "kernels and triggers";
    FifoPosition(u64), "position with this number", "kernels";
}

/// Returns the id of the memory that was added this many places later.
impl Add<u32> for MemoryId {
    type Output = Self;
    fn add(self, count: u32) -> Self {
        Self(self.0 + count)
    }
}

/// Returns the position this many places later.
impl Add<u64> for FifoPosition {
    type Output = Self;
    fn add(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_laid_out_as_their_numbers() {
        assert_eq!((size_of::<SemaphoreId>(), align_of::<SemaphoreId>()), (4, 4));
        assert_eq!((size_of::<MemoryId>(), align_of::<MemoryId>()), (4, 4));
        assert_eq!((size_of::<FifoPosition>(), align_of::<FifoPosition>()), (8, 8));
    }

    #[test]
    fn they_say_which_they_are_only_in_debug() {
        let (semaphore, memory, position) =
            (SemaphoreId::from_raw(1), MemoryId::from_raw(2), FifoPosition::from_raw(3));
        assert_eq!(format!("{semaphore} {memory} {position}"), "1 2 3");
        let debug = format!("{semaphore:?} {memory:?} {position:?}");
        assert_eq!(debug, "SemaphoreId(1) MemoryId(2) FifoPosition(3)");
        assert_eq!(format!("{memory:>4}"), "   2", "the formatter's width counts");
    }
}
