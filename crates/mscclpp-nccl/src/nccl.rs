//! NCCL itself, loaded from the path in `MSCCLPP_NCCL_FALLBACK`, and its communicators.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::{
    abi::{Code, Handle, UniqueId},
    env::Env,
    failure::Failure,
};

/// Declares the functions of NCCL that this library calls, and how they are looked up.
macro_rules! entry_points {
    ($($field:ident = $name:literal: fn($($type:ty),*) -> $result:ty;)*) => {
        /// NCCL's functions. Its library stays loaded until the process ends.
        pub(crate) struct Nccl {
            $(pub(crate) $field: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Nccl {
            /// Looks the functions up in a library.
            ///
            /// # Safety
            /// The library's functions of these names have the types that NCCL's header gives them.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller's promise.
                Ok(unsafe { Self { $($field: *library.get($name)?,)* } })
            }
        }
    };
}

entry_points! {
    version = b"ncclGetVersion": fn(*mut c_int) -> Code;
    unique_id = b"ncclGetUniqueId": fn(*mut UniqueId) -> Code;
    init_rank = b"ncclCommInitRank": fn(*mut Handle, c_int, UniqueId, c_int) -> Code;
    split = b"ncclCommSplit": fn(Handle, c_int, c_int, *mut Handle, *mut c_void) -> Code;
    count = b"ncclCommCount": fn(Handle, *mut c_int) -> Code;
    user_rank = b"ncclCommUserRank": fn(Handle, *mut c_int) -> Code;
    finalize = b"ncclCommFinalize": fn(Handle) -> Code;
    destroy = b"ncclCommDestroy": fn(Handle) -> Code;
    abort = b"ncclCommAbort": fn(Handle) -> Code;
    async_error = b"ncclCommGetAsyncError": fn(Handle, *mut Code) -> Code;
    last_error = b"ncclGetLastError": fn(Handle) -> *const c_char;
    create_operator = b"ncclRedOpCreatePreMulSum": fn(*mut c_int, *mut c_void, c_int, c_int, Handle) -> Code;
    destroy_operator = b"ncclRedOpDestroy": fn(c_int, Handle) -> Code;
    all_reduce = b"ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    reduce = b"ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Handle) -> Code;
    reduce_scatter = b"ncclReduceScatter":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    all_gather = b"ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> Code;
    all_to_all = b"ncclAlltoAll": fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> Code;
    broadcast = b"ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    gather = b"ncclGather": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    scatter = b"ncclScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    send = b"ncclSend": fn(*const c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    recv = b"ncclRecv": fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
    group_start = b"ncclGroupStart": fn() -> Code;
    group_end = b"ncclGroupEnd": fn() -> Code;
}

/// A communicator that was handed over to NCCL.
pub(crate) struct Handed {
    pub(crate) nccl: &'static Nccl,
    pub(crate) comm: Handle,
}

// SAFETY: NCCL's communicators may be used from any thread.
unsafe impl Send for Handed {}
// SAFETY: NCCL documents that the program must order calls of several threads for one communicator. Programs that use this
// library have the same duty.
unsafe impl Sync for Handed {}

/// NCCL's functions, whose library is loaded when it is first needed.
pub(crate) fn nccl() -> Result<&'static Nccl, Failure> {
    static NCCL: OnceLock<Result<Nccl, Failure>> = OnceLock::new();
    NCCL.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Nccl, Failure> {
    let Some(path) = &Env::of_process()?.fallback else {
        return Err(Failure::usage("MSCCLPP_NCCL_FALLBACK is not set"));
    };
    let refused = |error: libloading::Error| {
        let text = format!(
            "MSCCLPP_NCCL_FALLBACK={}: {error}; give the path of NCCL's libnccl.so.2",
            path.display()
        );
        Failure::new(Code::SYSTEM_ERROR, text)
    };
    // With RTLD_DEEPBIND NCCL's calls to its own functions reach them, also where this library was loaded first (LD_PRELOAD).
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_DEEPBIND;
    // SAFETY: the user says that the library is NCCL, whose initialisers may run in any process.
    let library = unsafe { Library::open(Some(path), flags) }.map_err(refused)?;
    // SAFETY: the user says that the library is NCCL.
    let nccl = unsafe { Nccl::of(&library) }.map_err(refused)?;
    // It must stay loaded, as NCCL's threads may outlive every communicator.
    std::mem::forget(library);
    Ok(nccl)
}

impl Nccl {
    pub(crate) fn check(&self, what: &str, comm: Handle, code: Code) -> Result<Code, Failure> {
        if code == Code::SUCCESS || code == Code::IN_PROGRESS {
            return Ok(code);
        }
        // SAFETY: the function takes a communicator, or NULL for none.
        let said = unsafe { (self.last_error)(comm) };
        // SAFETY: the function returns a C string, or NULL.
        let said = (!said.is_null()).then(|| unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned());
        Err(Failure::new(code, format!("NCCL's {what}: {}", said.unwrap_or_default())))
    }
}

impl Handed {
    fn check(&self, what: &str, code: Code) -> Result<Code, Failure> {
        self.nccl.check(what, self.comm, code)
    }

    /// `ncclCommSplit`. Returns none if the rank has no color.
    pub(crate) fn split(&self, color: c_int, key: c_int) -> Result<Option<Self>, Failure> {
        let mut comm = ptr::null_mut();
        // SAFETY: the communicator is NCCL's; the function writes a handle to a place for one.
        let code = unsafe { (self.nccl.split)(self.comm, color, key, &raw mut comm, ptr::null_mut()) };
        self.check("ncclCommSplit", code)?;
        Ok((!comm.is_null()).then_some(Self { nccl: self.nccl, comm }))
    }

    /// The rank of the communicator, and the number of ranks.
    pub(crate) fn position(&self) -> Result<(usize, usize), Failure> {
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: the communicator is NCCL's; the function writes a number to a place for one.
        self.check("ncclCommUserRank", unsafe { (self.nccl.user_rank)(self.comm, &raw mut rank) })?;
        // SAFETY: the same.
        self.check("ncclCommCount", unsafe { (self.nccl.count)(self.comm, &raw mut ranks) })?;
        let [rank, ranks] = [rank, ranks].map(usize::try_from);
        rank.and_then(|rank| Ok((rank, ranks?)))
            .map_err(|_| Failure::new(Code::INTERNAL_ERROR, "NCCL has a negative number of ranks"))
    }

    /// `ncclCommGetAsyncError`.
    pub(crate) fn state(&self) -> Code {
        let mut state = Code::SUCCESS;
        // SAFETY: the communicator is NCCL's; the function writes a code to a place for one.
        let code = unsafe { (self.nccl.async_error)(self.comm, &raw mut state) };
        if code == Code::SUCCESS { state } else { code }
    }

    /// `ncclCommFinalize`.
    pub(crate) fn finalize(&self) -> Result<Code, Failure> {
        // SAFETY: the communicator is NCCL's.
        self.check("ncclCommFinalize", unsafe { (self.nccl.finalize)(self.comm) })
    }

    /// `ncclCommDestroy`. The caller has removed the communicator's handle, so it is not used any more.
    pub(crate) fn destroy(&self) -> Result<Code, Failure> {
        // SAFETY: the communicator is NCCL's, and is used for the last time.
        self.nccl.check("ncclCommDestroy", ptr::null_mut(), unsafe { (self.nccl.destroy)(self.comm) })
    }

    /// `ncclCommAbort`. The caller has removed the communicator's handle, so it is not used any more.
    pub(crate) fn abort(&self) -> Result<Code, Failure> {
        // SAFETY: the communicator is NCCL's, and is used for the last time.
        self.nccl.check("ncclCommAbort", ptr::null_mut(), unsafe { (self.nccl.abort)(self.comm) })
    }

    /// `ncclRedOpCreatePreMulSum`.
    ///
    /// # Safety
    /// `scalar` is what that function asks for.
    pub(crate) unsafe fn create_operator(
        &self,
        scalar: *mut c_void,
        data_type: c_int,
        residence: c_int,
    ) -> Result<c_int, Failure> {
        let mut op = 0;
        // SAFETY: the caller's promise; the function writes a number to a place for one.
        let code =
            unsafe { (self.nccl.create_operator)(&raw mut op, scalar, data_type, residence, self.comm) };
        self.check("ncclRedOpCreatePreMulSum", code).map(|_| op)
    }

    /// `ncclRedOpDestroy`.
    pub(crate) fn destroy_operator(&self, op: c_int) -> Result<(), Failure> {
        // SAFETY: the communicator is NCCL's.
        self.check("ncclRedOpDestroy", unsafe { (self.nccl.destroy_operator)(op, self.comm) }).map(drop)
    }
}
