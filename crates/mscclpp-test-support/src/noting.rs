//! An allocator that says what it is asked for.
#![allow(unsafe_code, reason = "the trait of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator. Before each allocation it calls a function with the number of bytes. That function must allocate
/// nothing itself. If it panics, the process is aborted, as at the end of every `extern "C"` function.
pub struct Noting(pub extern "C" fn(usize));

// SAFETY: all calls go to the system's allocator with their own arguments. The function called before neither unwinds, because
// its ABI is C's, nor has anything to do with the memory.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same here.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        (self.0)(size);
        // SAFETY: `ptr` came from `System`, because this allocator gets all memory from it. The caller vouches for the size.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System`, because this allocator gets all memory from it.
        unsafe { System.dealloc(ptr, layout) }
    }
}
