//! The fake from outside: its path, and the functions by which a test controls it.

use std::{
    env,
    ffi::{CString, c_char},
    io,
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

/// The kinds of objects, each with the entry point that destroys one: the names of [`Existing`]'s counts.
const KINDS: [&str; 9] = [
    "hipFree",
    // Pinned memory, which is kept for reuse until the process ends.
    "hipHostFree",
    "hipIpcCloseMemHandle",
    "hipStreamDestroy",
    "hipEventDestroy",
    "hipGraphDestroy",
    "hipGraphExecDestroy",
    "hipModuleUnload",
    "hiprtcDestroyProgram",
];

/// How many objects of each kind exist.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Existing([u64; 9]);

impl Existing {
    /// Returns the count of the objects that the entry point destroys.
    pub(crate) fn of(mut self, destructor: &str) -> u64 {
        *self.count(destructor)
    }

    /// Adds objects that the entry point destroys.
    pub(crate) fn with(mut self, count: u64, destructor: &str) -> Self {
        *self.count(destructor) += count;
        self
    }

    fn count(&mut self, destructor: &str) -> &mut u64 {
        let kind = KINDS.iter().position(|kind| *kind == destructor);
        &mut self.0[kind.unwrap_or_else(|| panic!("{destructor} takes nothing down"))]
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
            let fail = self.function::<unsafe extern "C" fn(*const c_char, u32, bool)>("fakeHipFail");
            fail(entry.as_ptr(), code, here);
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
        let mut existing = Existing::default();
        // SAFETY: the type is that of the fake's function.
        unsafe { self.function::<extern "C" fn(&mut [u64; 9])>("fakeHipExisting")(&mut existing.0) };
        existing
    }

    /// Waits until the existing objects are as expected: memory is freed by a thread of its own.
    pub(crate) fn await_existing(&self, when: &str, expected: Existing) {
        // Pinned memory is not compared: as much is kept for reuse as was needed.
        let but_for_pinned =
            |existing: Existing| KINDS.map(|kind| existing.of(kind) * u64::from(kind != "hipHostFree"));
        let come =
            within(Duration::from_secs(60), || but_for_pinned(self.existing()) == but_for_pinned(expected));
        assert!(come, "{when}: {:?} instead of {:?} of {KINDS:?}", self.existing().0, expected.0);
    }
}
