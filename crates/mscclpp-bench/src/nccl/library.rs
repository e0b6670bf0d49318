//! The entry points of NCCL's library, and their types, which are those of its header `nccl.h`.

use std::{
    error::Error as _,
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
};

use crate::Result;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclComm_t`, `ncclWindow_t`, `cudaStream_t`.
pub(super) type Handle = *mut c_void;

/// `NCCL_WIN_COLL_SYMMETRIC`.
pub(super) const SYMMETRIC: c_int = 1;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

pub(super) type Move =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> c_int;
pub(super) type Reduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
pub(super) type OfComm = unsafe extern "C" fn(Handle) -> c_int;
pub(super) type Message<P> = unsafe extern "C" fn(P, usize, c_int, c_int, Handle, Handle) -> c_int;
pub(super) type Group = unsafe extern "C" fn() -> c_int;
type Text<K> = unsafe extern "C" fn(K) -> *const c_char;

/// The functions that every NCCL has.
const REQUIRED: [&CStr; 9] = [
    c"ncclGetUniqueId",
    c"ncclCommInitRank",
    c"ncclCommDestroy",
    c"ncclCommAbort",
    c"ncclAllReduce",
    c"ncclAllGather",
    c"ncclReduceScatter",
    c"ncclGetErrorString",
    c"ncclGetVersion",
];

/// NCCL's library. It stays loaded until the process ends, since its threads may outlive a communicator.
pub(crate) struct Library {
    pub(super) name: String,
    version: c_int,
    handle: &'static libloading::Library,
}

impl Library {
    /// Loads the library. `on_sim`: for simulated devices, which only stand-ins of tests can use.
    pub(super) fn open(name: &str, on_sim: bool) -> Result<Self> {
        // SAFETY: the user names this file as NCCL's library, whose initialisers may run in any process.
        let handle = unsafe { libloading::Library::new(name) }.map_err(|error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!(
                "NCCL cannot be loaded from {name} ({reason}); give the path of libnccl.so.2, for instance that of the \
                 Python package nvidia-nccl-cu12, to --compare"
            )
        })?;
        let mut library = Self { name: name.to_owned(), version: 0, handle: Box::leak(Box::new(handle)) };
        if on_sim && !library.has(c"ncclOfSimulatedDevices") {
            return Err(format!(
                "--compare {name} needs GPUs: NCCL and libraries in its place work on memory of CUDA's runtime, and the devices here \
                 are simulated; without --compare the library's collectives are measured alone"
            )
            .into());
        }
        if let Some(missing) = REQUIRED.into_iter().find(|function| !library.has(function)) {
            return Err(library.is_none(missing).into());
        }
        // SAFETY: the type is the one that the header declares; the function writes one number, for which there is room.
        let code = unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> c_int =
                library.function(c"ncclGetVersion")?;
            get_version(&raw mut library.version)
        };
        library.check(c"ncclGetVersion", code)?;
        Ok(library)
    }

    /// Finds a function.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to that function.
    pub(super) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F> {
        // SAFETY: the caller makes the same promise, and the library is never unloaded.
        let found = unsafe { self.handle.get::<F>(name.to_bytes_with_nul()) };
        Ok(*found.map_err(|_| self.is_none(name))?)
    }

    pub(super) fn has(&self, name: &CStr) -> bool {
        // SAFETY: the type is that of an object's address, which is not read.
        unsafe { self.function::<*const c_void>(name) }.is_ok()
    }

    fn is_none(&self, missing: &CStr) -> String {
        format!("{} has no function {}, so it is not NCCL's library", self.name, missing.to_string_lossy())
    }

    /// Fails if a call's result is not success.
    pub(super) fn check(&self, call: &CStr, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the types are those of the header. The first function takes any number and returns a string that lives as long
        // as the library; without a communicator, the second returns the last error of all, in the library's own memory.
        let (said, more) = unsafe {
            let error_string: Text<c_int> = self.function(c"ncclGetErrorString")?;
            let last_error = self.function::<Text<Handle>>(c"ncclGetLastError").ok();
            (text(error_string(code)), last_error.map(|last| text(last(ptr::null_mut()))))
        };
        let more = more.filter(|more| !more.trim().is_empty()).map(|more| format!(": {}", more.trim()));
        Err(format!(
            "NCCL's {} failed: {said} ({code}){}; NCCL_DEBUG=INFO says more",
            call.to_string_lossy(),
            more.unwrap_or_default()
        )
        .into())
    }

    pub(super) fn version(&self) -> String {
        readable(self.version)
    }
}

/// Formats a version number. Up to 2.8, the minor version had one digit less.
fn readable(version: c_int) -> String {
    let major = if version < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", version / major, version % major / 100, version % 100)
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the text is not null, and NCCL's strings end with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_readable() {
        for (version, text) in [(2708, "2.7.8"), (21_805, "2.18.5"), (22_809, "2.28.9"), (23_203, "2.32.3")] {
            assert_eq!(readable(version), text);
        }
    }

    #[test]
    fn what_is_not_nccl_is_named() {
        let error = |name| Library::open(name, false).err().expect("no NCCL").to_string();
        let missing = error("/nowhere/libnccl.so.2");
        assert!(missing.contains("/nowhere/libnccl.so.2 (") && missing.contains("--compare"), "{missing}");
        let other = error("libc.so.6");
        assert_eq!(other, "libc.so.6 has no function ncclGetUniqueId, so it is not NCCL's library");
    }

    #[test]
    fn an_id_is_passed_as_the_header_has_it() {
        assert_eq!((size_of::<UniqueId>(), align_of::<UniqueId>()), (128, 1));
    }
}
