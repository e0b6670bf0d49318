//! The library as programs use it: loaded from its file, with functions looked up by their names.

#![allow(non_snake_case, reason = "the names are NCCL's")]

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    path::{Path, PathBuf},
    ptr,
    sync::LazyLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(crate) use super::header::*;

macro_rules! functions {
    ($($name:ident: fn($($type:ty),*) -> $result:ty;)*) => {
        pub(crate) struct Nccl {
            library: Library,
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Nccl {
            fn load(path: &Path) -> Self {
                // SAFETY: the file is this package's library, which does nothing when it is loaded.
                let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                // SAFETY: these are the types of NCCL's header and of `sim.rs`.
                unsafe {
                    Self {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).expect(stringify!($name)),)*
                        library,
                    }
                }
            }
        }
    };
}

functions! {
    ncclGetVersion: fn(*mut c_int) -> c_int;
    ncclGetUniqueId: fn(*mut UniqueId) -> c_int;
    ncclCommInitRank: fn(*mut Handle, c_int, UniqueId, c_int) -> c_int;
    ncclCommInitRankConfig: fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> c_int;
    ncclCommInitRankScalable: fn(*mut Handle, c_int, c_int, c_int, *mut UniqueId, *mut Config) -> c_int;
    ncclCommInitAll: fn(*mut Handle, c_int, *const c_int) -> c_int;
    ncclCommFinalize: fn(Handle) -> c_int;
    ncclCommDestroy: fn(Handle) -> c_int;
    ncclCommAbort: fn(Handle) -> c_int;
    ncclCommRevoke: fn(Handle, c_int) -> c_int;
    ncclCommSplit: fn(Handle, c_int, c_int, *mut Handle, *mut Config) -> c_int;
    ncclCommShrink: fn(Handle, *mut c_int, c_int, *mut Handle, *mut Config, c_int) -> c_int;
    ncclCommGetAsyncError: fn(Handle, *mut c_int) -> c_int;
    ncclCommCount: fn(Handle, *mut c_int) -> c_int;
    ncclCommCuDevice: fn(Handle, *mut c_int) -> c_int;
    ncclCommUserRank: fn(Handle, *mut c_int) -> c_int;
    ncclGetErrorString: fn(c_int) -> *const c_char;
    ncclGetLastError: fn(Handle) -> *const c_char;
    ncclMemAlloc: fn(*mut *mut c_void, usize) -> c_int;
    ncclMemFree: fn(*mut c_void) -> c_int;
    ncclCommRegister: fn(Handle, *mut c_void, usize, *mut Handle) -> c_int;
    ncclCommDeregister: fn(Handle, Handle) -> c_int;
    ncclCommWindowRegister: fn(Handle, *mut c_void, usize, *mut Handle, c_int) -> c_int;
    ncclCommWindowDeregister: fn(Handle, Handle) -> c_int;
    ncclRedOpCreatePreMulSum: fn(*mut c_int, *mut c_void, c_int, c_int, Handle) -> c_int;
    ncclRedOpDestroy: fn(c_int, Handle) -> c_int;
    ncclAllReduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclReduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Handle) -> c_int;
    ncclReduceScatter: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclAllGather: fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> c_int;
    ncclAlltoAll: fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> c_int;
    ncclBroadcast: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclBcast: fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclGather: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclScatter: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclSend: fn(*const c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclRecv: fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    ncclGroupStart: fn() -> c_int;
    ncclGroupEnd: fn() -> c_int;
    ncclGroupSimulateEnd: fn(*mut SimInfo) -> c_int;
    ncclTeamWorld: fn(Handle) -> Team;
    ncclTeamLsa: fn(Handle) -> Team;
    ncclTeamRail: fn(Handle) -> Team;
    ncclTeamRankToWorld: fn(Handle, Team, c_int) -> c_int;
    ncclTeamRankToLsa: fn(Handle, Team, c_int) -> c_int;
    ncclLLA2ACalcSlots: fn(c_int, c_int) -> c_int;
    ncclDevCommCreate: fn(Handle, *const c_void, *mut c_void) -> c_int;
    ncclDevCommDestroy: fn(Handle, *const c_void) -> c_int;
    ncclLsaBarrierCreateRequirement: fn(Team, c_int, *mut c_void, *mut c_void) -> c_int;
    ncclGinBarrierCreateRequirement: fn(Handle, Team, c_int, *mut c_void, *mut c_void) -> c_int;
    ncclGinOutboxCreateRequirement: fn() -> c_int;
    ncclGinInboxA2ACreateRequirement: fn() -> c_int;
    ncclLLA2ACreateRequirement: fn(c_int, c_int, *mut c_void, *mut c_void) -> c_int;
    ncclCftBarrierCreateRequirement: fn(Team, c_int, *mut c_void, *mut c_void) -> c_int;
    ncclGetLsaMultimemDevicePointer: fn(Handle, usize, *mut *mut c_void) -> c_int;
    ncclGetMultimemDevicePointer: fn(Handle, usize, usize, *mut *mut c_void) -> c_int;
    ncclGetMultimemDeviceLeInfo: fn(Handle, usize, *mut u32, *mut usize) -> c_int;
    ncclGetCftDeviceLeInfo: fn(Handle, usize, c_int, Team, *mut u32, *mut usize) -> c_int;
    ncclGetPeerDeviceLeInfo: fn(Handle, usize, c_int, *mut u32, *mut usize) -> c_int;
    ncclSetEncryption: fn(*const EncryptionConfig) -> c_int;
    ncclTeamCft: fn(Handle, c_int) -> Team;
    ncclTeamCftMultimem: fn(Handle) -> Team;
    ncclCommGetUniqueId: fn(Handle, *mut UniqueId) -> c_int;
    ncclCommGrow: fn(Handle, c_int, *const UniqueId, c_int, *mut Handle, *mut Config) -> c_int;
    ncclCommSuspend: fn(Handle, c_int) -> c_int;
    ncclCommResume: fn(Handle) -> c_int;
    ncclPutSignal: fn(*const c_void, usize, c_int, c_int, Handle, usize, c_int, c_int, c_uint, Handle, Handle) -> c_int;
    ncclSignal: fn(c_int, c_int, c_int, c_uint, Handle, Handle) -> c_int;
    ncclWaitSignal: fn(c_int, *mut WaitSignal, Handle, Handle) -> c_int;
    ncclResetDebugInit: fn() -> ();
    ncclAllReduceConfig: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclBroadcastConfig: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclReduceConfig: fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclAllGatherConfig: fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclReduceScatterConfig: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclAlltoAllConfig: fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclGatherConfig: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclScatterConfig: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle, *const CollConfig) -> c_int;
    ncclCommQueryProperties: fn(Handle, *mut CommProperties) -> c_int;
    ncclCommMemStats: fn(Handle, c_int, *mut u64) -> c_int;
    ncclWinGetUserPtr: fn(Handle, Handle, *mut *mut c_void) -> c_int;
    ncclGetPeerDevicePointer: fn(Handle, usize, c_int, *mut *mut c_void) -> c_int;
    ncclGetLsaDevicePointer: fn(Handle, usize, c_int, *mut *mut c_void) -> c_int;
    ncclParamBind: fn(*mut Handle, *const c_char) -> c_int;
    ncclParamGetI8: fn(Handle, *mut i8) -> c_int;
    ncclParamGetI64: fn(Handle, *mut i64) -> c_int;
    ncclParamGetU32: fn(Handle, *mut u32) -> c_int;
    ncclParamGetStr: fn(Handle, *mut *const c_char) -> c_int;
    ncclParamGet: fn(Handle, *mut c_void, c_int, *mut c_int) -> c_int;
    ncclParamGetParameter: fn(*const c_char, *mut *const c_char, *mut c_int) -> c_int;
    ncclParamDumpAll: fn() -> ();
    ncclParamGetAllParameterKeys: fn(*mut *mut *const c_char, *mut c_int) -> c_int;
    pncclAllReduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
    mscclppSimSetDevice: fn(c_int) -> c_int;
    mscclppSimStreamCreate: fn(*mut Handle) -> c_int;
    mscclppSimStreamDestroy: fn(Handle) -> c_int;
    mscclppSimStreamSynchronize: fn(Handle) -> c_int;
    mscclppSimStreamQuery: fn(Handle) -> c_int;
    mscclppSimStreamWaitEvent: fn(Handle, Handle) -> c_int;
    mscclppSimEventCreate: fn(*mut Handle) -> c_int;
    mscclppSimEventDestroy: fn(Handle) -> c_int;
    mscclppSimEventQuery: fn(Handle) -> c_int;
    mscclppSimStreamBeginCapture: fn(Handle) -> c_int;
    mscclppSimStreamEndCapture: fn(Handle, *mut Handle) -> c_int;
    mscclppSimGraphLaunch: fn(Handle, Handle) -> c_int;
    mscclppSimGraphDestroy: fn(Handle) -> c_int;
}

/// The path of this package's library, which is beside the test program.
pub(crate) fn path() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a folder");
    let beside = [folder.join("libnccl.so"), folder.join("libnccl.so.2")];
    beside
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no libnccl.so in {}", folder.display()))
}

/// The library, on simulated devices.
pub(crate) fn nccl() -> &'static Nccl {
    static NCCL: LazyLock<Nccl> = LazyLock::new(|| {
        // SAFETY: the library, which reads the variable, is loaded later, and nothing else in these tests reads variables
        // through the C library.
        unsafe { env::set_var("MSCCLPP_PLATFORM", "sim") };
        Nccl::load(&path())
    });
    &NCCL
}

// SAFETY: the fields are functions, which any thread may call, and a library that stays loaded.
unsafe impl Sync for Nccl {}
// SAFETY: the fields are functions, which any thread may call, and a library that stays loaded.
unsafe impl Send for Nccl {}

impl Nccl {
    pub(crate) fn has(&self, name: &str) -> bool {
        // SAFETY: the symbol is neither called nor read.
        unsafe { self.library.get::<*const c_void>(name.as_bytes()) }.is_ok()
    }

    /// The text of `ncclGetLastError`.
    pub(crate) fn last_error(&self, comm: Handle) -> String {
        // SAFETY: the function takes a communicator or NULL; the text is valid until this thread calls it again.
        unsafe { CStr::from_ptr((self.ncclGetLastError)(comm)) }.to_string_lossy().into_owned()
    }

    /// Checks that a call succeeded.
    ///
    /// # Panics
    /// If it did not, with the text of its failure.
    #[track_caller]
    pub(crate) fn ok(&self, code: c_int) {
        assert_eq!(code, SUCCESS, "{}", self.last_error(ptr::null_mut()));
    }

    /// Checks that a call failed with this code, and a text that contains `said`.
    #[track_caller]
    pub(crate) fn fails(&self, code: c_int, expected: c_int, said: &str) {
        let text = self.last_error(ptr::null_mut());
        assert_eq!(code, expected, "{text}");
        assert!(text.contains(said), "{text:?} does not say {said:?}");
    }

    pub(crate) fn unique_id(&self) -> UniqueId {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the function writes an id to a place for one.
        self.ok(unsafe { (self.ncclGetUniqueId)(&raw mut id) });
        id
    }

    pub(crate) fn set_device(&self, device: usize) {
        // SAFETY: the function takes a number.
        self.ok(unsafe { (self.mscclppSimSetDevice)(device as c_int) });
    }

    pub(crate) fn state(&self, comm: Handle) -> c_int {
        let mut state = -1;
        // SAFETY: the function writes a code to a place for one.
        self.ok(unsafe { (self.ncclCommGetAsyncError)(comm, &raw mut state) });
        state
    }
}

/// Memory of the thread's device that holds numbers.
pub(crate) struct Numbers<T> {
    address: *mut T,
    len: usize,
}

// SAFETY: the numbers are in memory of the process, and the tests order their uses of it.
unsafe impl<T> Send for Numbers<T> {}
// SAFETY: the numbers are in memory of the process, and the tests order their uses of it.
unsafe impl<T> Sync for Numbers<T> {}

impl<T: Copy> Numbers<T> {
    pub(crate) fn new(numbers: &[T]) -> Self {
        let mut address = ptr::null_mut();
        let nccl = nccl();
        // SAFETY: the function writes an address to a place for one.
        nccl.ok(unsafe { (nccl.ncclMemAlloc)(&raw mut address, size_of_val(numbers).max(1)) });
        let address = address.cast::<T>();
        // SAFETY: the memory has this size, and nothing else uses it yet.
        unsafe { ptr::copy_nonoverlapping(numbers.as_ptr(), address, numbers.len()) };
        Self { address, len: numbers.len() }
    }

    pub(crate) fn at(&self, index: usize) -> *mut c_void {
        assert!(index <= self.len);
        self.address.wrapping_add(index).cast()
    }

    pub(crate) fn ptr(&self) -> *mut c_void {
        self.address.cast()
    }

    /// The numbers in the memory. Calls that write them must be complete.
    pub(crate) fn read(&self) -> Vec<T> {
        // SAFETY: the memory has this size, and nothing writes it any more.
        (0..self.len).map(|i| unsafe { self.address.add(i).read_volatile() }).collect()
    }

    pub(crate) fn write(&self, numbers: &[T]) {
        assert_eq!(numbers.len(), self.len);
        // SAFETY: the memory has this size, and nothing else uses it now.
        numbers
            .iter()
            .enumerate()
            .for_each(|(i, number)| unsafe { self.address.add(i).write_volatile(*number) });
    }
}

impl<T> Drop for Numbers<T> {
    fn drop(&mut self) {
        let nccl = nccl();
        // SAFETY: `ncclMemAlloc` allocated the memory.
        nccl.ok(unsafe { (nccl.ncclMemFree)(self.address.cast()) });
    }
}

/// A stream of the thread's device.
pub(crate) struct Stream(pub(crate) Handle);

impl Stream {
    pub(crate) fn new() -> Self {
        let mut stream = ptr::null_mut();
        let nccl = nccl();
        // SAFETY: the function writes a handle to a place for one.
        nccl.ok(unsafe { (nccl.mscclppSimStreamCreate)(&raw mut stream) });
        Self(stream)
    }

    pub(crate) fn synchronize(&self) {
        let nccl = nccl();
        // SAFETY: the handle is that of a live stream.
        nccl.ok(unsafe { (nccl.mscclppSimStreamSynchronize)(self.0) });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is that of a live stream.
        unsafe { (nccl().mscclppSimStreamDestroy)(self.0) };
    }
}

/// A rank's communicator, with its stream.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) comm: Handle,
    pub(crate) stream: Stream,
}

impl Rank {
    /// Makes a rank's communicator on the device that has the rank's number.
    pub(crate) fn join(rank: usize, ranks: usize, id: UniqueId) -> Self {
        Self::join_on(rank, rank, ranks, id)
    }

    /// Makes a rank's communicator on a device.
    pub(crate) fn join_on(device: usize, rank: usize, ranks: usize, id: UniqueId) -> Self {
        let nccl = nccl();
        nccl.set_device(device);
        let mut comm = ptr::null_mut();
        // SAFETY: the function writes a handle to a place for one.
        nccl.ok(unsafe { (nccl.ncclCommInitRank)(&raw mut comm, ranks as c_int, id, rank as c_int) });
        Self { rank, ranks, comm, stream: Stream::new() }
    }

    /// The rank of a communicator, with a stream of the thread's device.
    pub(crate) fn of(comm: Handle) -> Self {
        let (nccl, mut rank, mut ranks) = (nccl(), -1, -1);
        // SAFETY: the handle is that of a live communicator; the functions write numbers to places for them.
        unsafe {
            nccl.ok((nccl.ncclCommUserRank)(comm, &raw mut rank));
            nccl.ok((nccl.ncclCommCount)(comm, &raw mut ranks));
        }
        Self { rank: rank as usize, ranks: ranks as usize, comm, stream: Stream::new() }
    }

    pub(crate) fn all_reduce(&self, numbers: &Numbers<f32>) {
        let nccl = nccl();
        // SAFETY: the memory is that of the device, and lives until the stream is synchronised.
        nccl.ok(unsafe {
            (nccl.ncclAllReduce)(numbers.ptr(), numbers.ptr(), numbers.len, 7, 0, self.comm, self.stream.0)
        });
    }

    /// Checks that an all-reduce of the communicator gives the sum.
    pub(crate) fn assert_works(&self) {
        let numbers = Numbers::new(&[1.0f32 + self.rank as f32; 100]);
        self.all_reduce(&numbers);
        self.stream.synchronize();
        let sum = (self.ranks * (self.ranks + 1) / 2) as f32;
        assert_eq!(numbers.read(), [sum; 100]);
    }

    pub(crate) fn destroy(self) {
        let nccl = nccl();
        // SAFETY: the handle is that of a live communicator.
        nccl.ok(unsafe { (nccl.ncclCommDestroy)(self.comm) });
    }
}

/// Runs `n` ranks as threads of this process.
pub(crate) fn ranks(n: usize, rank: impl Fn(Rank) + Sync) {
    let id = nccl().unique_id();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|r| {
                scope.spawn({
                    let rank = &rank;
                    move || rank(Rank::join(r, n, id))
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}
