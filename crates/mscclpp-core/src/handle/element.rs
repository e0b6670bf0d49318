use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What [`super::MemoryChannelHandle::read`] and its `write` move: a number, in one access, or an array of numbers, in
/// one access each.
pub trait Element: sealed::Sealed + Copy {
    /// Loads it.
    ///
    /// # Safety
    /// `at` is device memory of the Host platform, aligned.
    unsafe fn load(at: *mut Self) -> Self;

    /// Stores it.
    ///
    /// # Safety
    /// As [`Element::load`].
    unsafe fn store(self, at: *mut Self);
}

mod sealed {
    pub trait Sealed {}
    impl<T: Sealed, const N: usize> Sealed for [T; N] {}
}

macro_rules! element {
    ($($number:ty, $bits:ty, $atomic:ty;)*) => { $(
        impl sealed::Sealed for $number {}
        impl Element for $number {
            unsafe fn load(at: *mut Self) -> Self {
                // SAFETY: mapped and aligned (the caller's promise), and everybody uses atomics there.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                Self::from_ne_bytes(word.load(Ordering::Relaxed).to_ne_bytes())
            }

            unsafe fn store(self, at: *mut Self) {
                // SAFETY: as above.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                word.store(<$bits>::from_ne_bytes(self.to_ne_bytes()), Ordering::Relaxed);
            }
        }
    )* };
}
element! {
    u8, u8, AtomicU8;
    i8, u8, AtomicU8;
    u16, u16, AtomicU16;
    i16, u16, AtomicU16;
    u32, u32, AtomicU32;
    i32, u32, AtomicU32;
    f32, u32, AtomicU32;
    u64, u64, AtomicU64;
    i64, u64, AtomicU64;
    f64, u64, AtomicU64;
}

impl<T: Element, const N: usize> Element for [T; N] {
    unsafe fn load(at: *mut Self) -> Self {
        // SAFETY: the elements are inside the array and aligned as it is.
        std::array::from_fn(|i| unsafe { T::load(at.cast::<T>().wrapping_add(i)) })
    }

    unsafe fn store(self, at: *mut Self) {
        for (i, element) in self.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { element.store(at.cast::<T>().wrapping_add(i)) };
        }
    }
}
