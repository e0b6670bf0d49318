//! The fake from outside: its path, and the functions by which a test controls it.

use std::{
    env,
    ffi::{CString, c_char},
    fmt, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use libloading::os::unix::{Library, Symbol};
use mscclpp_test_support::{until, within};

const NAME: &str = "libamdhip64.so.7";

/// Returns the path at which Cargo builds the fake.
fn built() -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("libfake_hip.so"))
}

pub(crate) fn is_there() -> bool {
    built().is_ok_and(|built| built.exists())
}

/// Links the fake into `folder` under the names of the HIP runtime and of hiprtc, and makes the program look there
/// first.
pub(crate) fn put_in_place(folder: &Path, program: &mut Command) -> io::Result<()> {
    let built = built()?;
    for name in [NAME, "libhiprtc.so.7"] {
        symlink(&built, folder.join(name))?;
    }
    program.env("LD_LIBRARY_PATH", folder).env("MSCCLPP_SIM_DEVICES", "2");
    Ok(())
}

/// How many objects of each kind exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Existing {
    pub(crate) memory: u64,
    /// Pinned memory, which is kept for reuse until the process ends.
    pub(crate) pinned: u64,
    pub(crate) imported: u64,
    pub(crate) streams: u64,
    pub(crate) events: u64,
    pub(crate) graphs: u64,
    pub(crate) executables: u64,
    pub(crate) modules: u64,
    pub(crate) programs: u64,
}

impl Existing {
    /// Returns one object of the kind that the entry point destroys.
    pub(crate) fn of_destructor(entry: &str) -> Self {
        let mut one = Self::default();
        match entry {
            "hipFree" => one.memory = 1,
            "hipIpcCloseMemHandle" => one.imported = 1,
            "hipStreamDestroy" => one.streams = 1,
            "hipEventDestroy" => one.events = 1,
            "hipGraphDestroy" => one.graphs = 1,
            "hipGraphExecDestroy" => one.executables = 1,
            "hipModuleUnload" => one.modules = 1,
            "hiprtcDestroyProgram" => one.programs = 1,
            _ => panic!("{entry} takes nothing down"),
        }
        one
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            memory: self.memory + other.memory,
            pinned: self.pinned + other.pinned,
            imported: self.imported + other.imported,
            streams: self.streams + other.streams,
            events: self.events + other.events,
            graphs: self.graphs + other.graphs,
            executables: self.executables + other.executables,
            modules: self.modules + other.modules,
            programs: self.programs + other.programs,
        }
    }

    /// Whether the counts are as expected. Pinned memory is not compared: it is kept for reuse, as much as was
    /// needed.
    fn is_but_for_pinned(self, expected: Self) -> bool {
        Self { pinned: expected.pinned, ..self } == expected
    }
}

/// The loaded fake.
pub(crate) struct Fake {
    library: Library,
}

impl Fake {
    /// Loads the fake; the platform loads the same library.
    pub(crate) fn load() -> Self {
        // SAFETY: the library is the fake, which has no initialisers of its own.
        Self { library: unsafe { Library::new(NAME) }.expect("the fake where the loader looks first") }
    }

    /// # Safety
    /// `F` is the type of the function.
    unsafe fn function<F>(&self, name: &str) -> Symbol<F> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get(name.as_bytes()) }.expect("a function of the fake")
    }

    /// Makes the next call of `entry` fail, only in this thread if `here` is true.
    pub(crate) fn fail(&self, entry: &str, code: u32, here: bool) {
        let entry = CString::new(entry).expect("a name");
        // SAFETY: the type is that of the fake's function; the name is NUL-terminated.
        unsafe {
            let fail = self.function::<unsafe extern "C" fn(*const c_char, u64, u32, bool)>("fakeHipFail");
            fail(entry.as_ptr(), 0, code, here);
        }
    }

    /// Waits until the failure that was asked for has come.
    pub(crate) fn await_failure(&self, entry: &str) {
        // SAFETY: the type is that of the fake's function.
        let planned = unsafe { self.function::<extern "C" fn() -> bool>("fakeHipIsFailurePlanned") };
        until(&format!("a call of {entry} that fails"), || !planned());
    }

    pub(crate) fn calls(&self, entry: &str) -> u64 {
        let entry = CString::new(entry).expect("a name");
        // SAFETY: the type is that of the fake's function; the name is NUL-terminated.
        unsafe {
            let calls = self.function::<unsafe extern "C" fn(*const c_char) -> u64>("fakeHipCalls");
            calls(entry.as_ptr())
        }
    }

    pub(crate) fn limit_memory(&self, bytes: u64) {
        // SAFETY: the type is that of the fake's function.
        unsafe { self.function::<extern "C" fn(u64)>("fakeHipLimitMemory")(bytes) };
    }

    /// Returns the result of `hipGetLastError` in this thread.
    pub(crate) fn last_error(&self) -> u32 {
        // SAFETY: the type is that of the function.
        unsafe { self.function::<extern "C" fn() -> u32>("hipGetLastError")() }
    }

    pub(crate) fn existing(&self) -> Existing {
        let mut counts = [0; 9];
        // SAFETY: the type is that of the fake's function.
        unsafe { self.function::<extern "C" fn(&mut [u64; 9])>("fakeHipExisting")(&mut counts) };
        let [memory, pinned, imported, streams, events, graphs, executables, modules, programs] = counts;
        Existing { memory, pinned, imported, streams, events, graphs, executables, modules, programs }
    }

    /// Waits until the existing objects are as expected: memory is freed by a thread of its own.
    pub(crate) fn await_existing(&self, when: &str, expected: Existing) {
        let come = within(Duration::from_secs(60), || self.existing().is_but_for_pinned(expected));
        assert!(come, "{when}: {} instead of {expected}", self.existing());
    }
}

impl fmt::Display for Existing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
