//! User objects: objects of a program that graphs keep.

use std::{
    ffi::{c_uint, c_void},
    sync::Arc,
};

use mscclpp_gpu_sys::{GRAPH_USER_OBJECT_MOVE, HostFn, USER_OBJECT_NO_DESTRUCTOR_SYNC, hip::HipResult};

use crate::{
    entry::{Out, entry_points, require},
    streams::GRAPHS,
    table::Table,
};

/// A user object. When its last reference is dropped, the program's destructor is called.
pub(crate) struct UserObject {
    data: usize,
    destroy: HostFn,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the program promised this call when it made the object; it happens once.
            unsafe { destroy(self.data as *mut c_void) };
        }
    }
}

/// The objects to which the program has its one reference.
static OBJECTS: Table<Arc<UserObject>> = Table::new(8);

entry_points! {
    fn hipUserObjectCreate(
        object: Out<*mut c_void>, data: *mut c_void, destroy: HostFn, references: c_uint, flags: c_uint,
    ) {
        require(destroy.is_some() && references == 1 && flags == USER_OBJECT_NO_DESTRUCTOR_SYNC)?;
        object.give(OBJECTS.add(Arc::new(UserObject { data: data as usize, destroy })))
    }

    fn hipUserObjectRelease(object: *mut c_void, count: c_uint) {
        match count {
            1 => OBJECTS.remove(object).map(drop),
            _ => Err(HipResult::INVALID_VALUE),
        }
    }

    /// Takes over the program's reference.
    fn hipGraphRetainUserObject(graph: *mut c_void, object: *mut c_void, count: c_uint, flags: c_uint) {
        require(count == 1 && flags == GRAPH_USER_OBJECT_MOVE)?;
        let graph = GRAPHS.get(graph)?;
        let object = OBJECTS.remove(object)?;
        graph.objects.lock().push(Arc::clone(&object));
        Ok(())
    }
}
