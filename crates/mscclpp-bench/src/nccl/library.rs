//! The entry points of NCCL's library, and their types, which are those of its header `nccl.h`.

use std::{
    error::Error as _,
    ffi::{CStr, c_char, c_int, c_void},
    mem, ptr,
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

type Move = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> c_int;
type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type OfComm = unsafe extern "C" fn(Handle) -> c_int;
type Message<P> = unsafe extern "C" fn(P, usize, c_int, c_int, Handle, Handle) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;
type Text<K> = unsafe extern "C" fn(K) -> *const c_char;

/// NCCL's functions. The library stays loaded until the process ends, since its threads may outlive a communicator.
pub(crate) struct Library {
    pub(super) name: String,
    pub(super) version: c_int,
    pub(super) unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int,
    pub(super) destroy: OfComm,
    pub(super) abort: OfComm,
    pub(super) all_reduce: Reduce,
    pub(super) all_gather: Move,
    pub(super) reduce_scatter: Reduce,
    pub(super) all_to_all: AllToAll,
    /// The functions for windows; none if the library is too old.
    pub(super) windows: Option<WindowFunctions>,
    error_string: Text<c_int>,
    last_error: Option<Text<Handle>>,
}

/// The way in which NCCL makes an all-to-all: by a function since 2.28, otherwise by messages.
pub(super) enum AllToAll {
    Function(Move),
    Messages {
        send: Message<*const c_void>,
        recv: Message<*mut c_void>,
        group_start: Group,
        group_end: Group,
    },
}

pub(super) struct WindowFunctions {
    pub(super) allocate: unsafe extern "C" fn(*mut Handle, usize) -> c_int,
    pub(super) free: OfComm,
    pub(super) register: unsafe extern "C" fn(Handle, *mut c_void, usize, *mut Handle, c_int) -> c_int,
    pub(super) deregister: unsafe extern "C" fn(Handle, Handle) -> c_int,
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
        let symbols = Symbols { handle: &handle, name };
        // SAFETY: the type is that of an object's address, which is not read.
        if on_sim && unsafe { symbols.optional::<*const c_void>(c"ncclOfSimulatedDevices") }.is_none() {
            return Err(format!(
                "--compare {name} needs GPUs: NCCL and libraries in its place work on memory of CUDA's runtime, and the devices here \
                 are simulated; without --compare the library's collectives are measured alone"
            )
            .into());
        }
        // SAFETY: the types are those that the header declares for these names.
        let mut library = unsafe {
            Self {
                name: name.to_owned(),
                version: 0,
                unique_id: symbols.required(c"ncclGetUniqueId")?,
                init_rank: symbols.required(c"ncclCommInitRank")?,
                destroy: symbols.required(c"ncclCommDestroy")?,
                abort: symbols.required(c"ncclCommAbort")?,
                all_reduce: symbols.required(c"ncclAllReduce")?,
                all_gather: symbols.required(c"ncclAllGather")?,
                reduce_scatter: symbols.required(c"ncclReduceScatter")?,
                all_to_all: symbols.all_to_all()?,
                windows: symbols.windows(),
                error_string: symbols.required(c"ncclGetErrorString")?,
                last_error: symbols.optional(c"ncclGetLastError"),
            }
        };
        // SAFETY: the type is the one that the header declares.
        let get_version: unsafe extern "C" fn(*mut c_int) -> c_int =
            unsafe { symbols.required(c"ncclGetVersion")? };
        // SAFETY: the function writes one number, for which there is room.
        let code = unsafe { get_version(&raw mut library.version) };
        library.check("ncclGetVersion", code)?;
        mem::forget(handle);
        Ok(library)
    }

    /// Fails if a call's result is not success.
    pub(super) fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a string that lives as long as the library.
        let said = text(unsafe { (self.error_string)(code) });
        // SAFETY: without a communicator, the function returns the last error of all, in the library's own memory.
        let more = self.last_error.map(|last| text(unsafe { last(ptr::null_mut()) }));
        let more = more.filter(|more| !more.trim().is_empty()).map(|more| format!(": {}", more.trim()));
        Err(format!(
            "NCCL's {call} failed: {said} ({code}){}; NCCL_DEBUG=INFO says more",
            more.unwrap_or_default()
        )
        .into())
    }

    /// The library's version in the usual form.
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

struct Symbols<'a> {
    handle: &'a libloading::Library,
    name: &'a str,
}

impl Symbols<'_> {
    /// Finds a function, if the library has it.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to that function, which may be called only while the library is loaded.
    unsafe fn optional<F: Copy>(&self, symbol: &CStr) -> Option<F> {
        // SAFETY: the caller makes the same promise.
        unsafe { self.handle.get::<F>(symbol.to_bytes_with_nul()) }.ok().map(|function| *function)
    }

    /// Finds a function that every NCCL has.
    ///
    /// # Safety
    /// The same as [`Self::optional`].
    unsafe fn required<F: Copy>(&self, symbol: &CStr) -> Result<F> {
        // SAFETY: the caller makes the same promise.
        unsafe { self.optional(symbol) }.ok_or_else(|| {
            format!("{} has no function {}, so it is not NCCL's library", self.name, symbol.to_string_lossy())
                .into()
        })
    }

    fn all_to_all(&self) -> Result<AllToAll> {
        // SAFETY: the types are those of the headers; the second name is that of RCCL.
        unsafe {
            let function = self.optional(c"ncclAlltoAll").or_else(|| self.optional(c"ncclAllToAll"));
            Ok(match function {
                Some(function) => AllToAll::Function(function),
                None => AllToAll::Messages {
                    send: self.required(c"ncclSend")?,
                    recv: self.required(c"ncclRecv")?,
                    group_start: self.required(c"ncclGroupStart")?,
                    group_end: self.required(c"ncclGroupEnd")?,
                },
            })
        }
    }

    fn windows(&self) -> Option<WindowFunctions> {
        // SAFETY: the types are those of the header.
        unsafe {
            Some(WindowFunctions {
                allocate: self.optional(c"ncclMemAlloc")?,
                free: self.optional(c"ncclMemFree")?,
                register: self.optional(c"ncclCommWindowRegister")?,
                deregister: self.optional(c"ncclCommWindowDeregister")?,
            })
        }
    }
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
