//! NCCL itself, loaded from the path in `MSCCLPP_NCCL_FALLBACK`, for communicators whose ranks this library does not cover.
//!
//! A communicator is handed over as a whole when it is formed. The ranks decide so from the greetings that they exchange, so all
//! ranks decide the same. Its calls then go to NCCL unchanged.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::{Arc, OnceLock},
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mscclpp::Bootstrap;

use crate::{
    abi::{Code, Handle, Place, UniqueId},
    calls::{Arguments, Call, What},
    comm::{Backend, Comm},
    config::Settings,
    env::Env,
    failure::Failure,
    forming, group, report,
};

/// Declares the functions of NCCL that this library calls, and how they are looked up.
macro_rules! entry_points {
    ($($field:ident = $name:literal: fn($($type:ty),*) -> $result:ty;)*) => {
        /// NCCL's functions. Its library stays loaded until the process ends.
        struct Nccl {
            $($field: unsafe extern "C" fn($($type),*) -> $result,)*
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
    nccl: &'static Nccl,
    comm: Handle,
}

// SAFETY: NCCL's communicators may be used from any thread.
unsafe impl Send for Handed {}
// SAFETY: NCCL documents that the program must order calls of several threads for one communicator. Programs that use this
// library have the same duty.
unsafe impl Sync for Handed {}

/// NCCL's functions, whose library is loaded when it is first needed.
fn nccl() -> Result<&'static Nccl, Failure> {
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
    fn check(&self, what: &str, comm: Handle, code: Code) -> Result<Code, Failure> {
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

/// Hands a communicator that is being formed over to NCCL. Blocks until all its ranks have called this.
pub(crate) fn hand_over(comm: &Comm, bootstrap: &dyn Bootstrap, why: &str) -> Result<Handed, Failure> {
    let nccl = nccl()?;
    let (rank, ranks) = comm.position()?;
    let mut id = UniqueId([0; 128]);
    if rank == 0 {
        // SAFETY: the function writes an id to a place for one.
        nccl.check("ncclGetUniqueId", ptr::null_mut(), unsafe { (nccl.unique_id)(&raw mut id) })?;
    }
    let mut bytes = id.0.to_vec();
    bootstrap.broadcast(&mut bytes, 0)?;
    id.0 = bytes.as_slice().try_into().map_err(|_| {
        Failure::usage(format!(
            "rank 0 sent {} bytes as NCCL's unique id; all ranks load the same library",
            bytes.len()
        ))
    })?;
    comm.gpu.make_current()?;
    let (mut handle, mut version) = (ptr::null_mut(), 0);
    let [n, r] = [ranks, rank].map(|number| c_int::try_from(number).unwrap_or(-1));
    // SAFETY: the function writes a handle to a place for one; the communicator's device is this thread's.
    nccl.check("ncclCommInitRank", ptr::null_mut(), unsafe { (nccl.init_rank)(&raw mut handle, n, id, r) })?;
    // SAFETY: the function writes a number to a place for one.
    nccl.check("ncclGetVersion", ptr::null_mut(), unsafe { (nccl.version)(&raw mut version) })?;
    report::once(&format!("{} goes to NCCL {version} (MSCCLPP_NCCL_FALLBACK): {why}", comm.name()));
    Ok(Handed { nccl, comm: handle })
}

/// Puts calls into their streams as one group of NCCL. One thread may have several ranks, and NCCL connects ranks at the end of
/// the group in which they first communicate: in separate groups, the first would wait for the second for ever.
pub(crate) fn submit(calls: &[Call]) -> Result<(), Failure> {
    let nccl = nccl()?;
    // SAFETY: the function has no arguments.
    nccl.check("ncclGroupStart", ptr::null_mut(), unsafe { (nccl.group_start)() })?;
    let made = calls.iter().try_for_each(|call| {
        let Backend::Handed(Handed { comm, .. }) = *call.comm.backend()? else { return Ok(()) };
        // SAFETY: the caller of `calls::make` promised what NCCL asks for.
        nccl.check("call", comm, unsafe { call_of(nccl, comm, call.what, &call.arguments) }).map(drop)
    });
    // SAFETY: the function has no arguments.
    let ended = nccl.check("ncclGroupEnd", ptr::null_mut(), unsafe { (nccl.group_end)() });
    made.and(ended.map(drop))
}

/// Calls the function of NCCL that `what` names.
///
/// # Safety
/// The arguments are what that function asks for.
unsafe fn call_of(nccl: &Nccl, comm: Handle, what: What, arguments: &Arguments) -> Code {
    let Arguments { send, recv, count, data_type, stream, .. } = *arguments;
    // SAFETY: the caller's promise.
    unsafe {
        match what {
            What::AllReduce { op } => (nccl.all_reduce)(send, recv, count, data_type, op, comm, stream),
            What::Reduce { op, root } => (nccl.reduce)(send, recv, count, data_type, op, root, comm, stream),
            What::ReduceScatter { op } => {
                (nccl.reduce_scatter)(send, recv, count, data_type, op, comm, stream)
            }
            What::AllGather => (nccl.all_gather)(send, recv, count, data_type, comm, stream),
            What::AlltoAll => (nccl.all_to_all)(send, recv, count, data_type, comm, stream),
            What::Broadcast { root } => (nccl.broadcast)(send, recv, count, data_type, root, comm, stream),
            What::Gather { root } => (nccl.gather)(send, recv, count, data_type, root, comm, stream),
            What::Scatter { root } => (nccl.scatter)(send, recv, count, data_type, root, comm, stream),
            What::Send { peer } => (nccl.send)(send, count, data_type, peer, comm, stream),
            What::Recv { peer } => (nccl.recv)(recv, count, data_type, peer, comm, stream),
        }
    }
}

/// `ncclCommSplit` of a communicator that was handed over to NCCL.
pub(crate) fn split(
    parent: &Arc<Comm>,
    color: c_int,
    key: c_int,
    place: Place<Handle>,
    settings: Settings,
) -> Result<Code, Failure> {
    let child = Comm::new(parent.gpu.clone(), settings);
    forming::in_background(&child, Arc::clone(parent), move |child, parent| {
        let Backend::Handed(handed) = parent.formed()? else {
            return Err(Failure::usage("this communicator is not NCCL's"));
        };
        parent.gpu.make_current()?;
        let Some(made) = handed.split(color, key)? else { return Err(Failure::usage("it has no color")) };
        let (rank, ranks) = made.position()?;
        child.set_position(rank, ranks);
        Ok(Ok(Backend::Handed(made)))
    })?;
    if color < 0 {
        place.set(ptr::null_mut());
        // The split must be complete before the next call for the parent: NCCL asks its callers to order the calls of a
        // communicator.
        let deadline = Comm::deadline(Env::of_process()?.timeout);
        return group::together(parent, move || match child.wait_formed(deadline) {
            Err(failure) if failure.code != Code::INVALID_USAGE => Err(failure),
            // The expected failure: the rank has no color, so there is no communicator.
            _ => Ok(()),
        });
    }
    group::created(place, child)
}

impl Handed {
    fn check(&self, what: &str, code: Code) -> Result<Code, Failure> {
        self.nccl.check(what, self.comm, code)
    }

    fn split(&self, color: c_int, key: c_int) -> Result<Option<Self>, Failure> {
        let mut comm = ptr::null_mut();
        // SAFETY: the communicator is NCCL's; the function writes a handle to a place for one.
        let code = unsafe { (self.nccl.split)(self.comm, color, key, &raw mut comm, ptr::null_mut()) };
        self.check("ncclCommSplit", code)?;
        Ok((!comm.is_null()).then_some(Self { nccl: self.nccl, comm }))
    }

    fn position(&self) -> Result<(usize, usize), Failure> {
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
