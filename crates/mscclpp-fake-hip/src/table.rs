//! Tables of objects that callers know by a handle.

use std::{collections::HashMap, ffi::c_void, sync::Arc};

use mscclpp_gpu_sys::hip::HipResult;
use parking_lot::Mutex;

/// The objects of one kind that exist.
pub(crate) struct Table<T> {
    /// Distinguishes the handles of one table from those of another.
    kind: usize,
    objects: Mutex<Option<Objects<T>>>,
}

struct Objects<T> {
    last: usize,
    by_handle: HashMap<usize, Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: usize) -> Self {
        Self { kind, objects: Mutex::new(None) }
    }

    /// Adds an object. Returns a handle that was not used before, which looks like a pointer and is none.
    pub(crate) fn add(&self, object: T) -> *mut c_void {
        let mut objects = self.objects.lock();
        let objects = objects.get_or_insert_with(|| Objects { last: 0, by_handle: HashMap::new() });
        objects.last += 1;
        let handle = self.kind << 40 | objects.last << 4;
        objects.by_handle.insert(handle, Arc::new(object));
        handle as *mut c_void
    }

    pub(crate) fn get(&self, handle: *mut c_void) -> Result<Arc<T>, HipResult> {
        let objects = self.objects.lock();
        let found = objects.as_ref().and_then(|objects| objects.by_handle.get(&(handle as usize)));
        found.cloned().ok_or(HipResult::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, HipResult> {
        let mut objects = self.objects.lock();
        let removed = objects.as_mut().and_then(|objects| objects.by_handle.remove(&(handle as usize)));
        removed.ok_or(HipResult::INVALID_HANDLE)
    }

    pub(crate) fn len(&self) -> u64 {
        self.objects.lock().as_ref().map_or(0, |objects| objects.by_handle.len() as u64)
    }
}
