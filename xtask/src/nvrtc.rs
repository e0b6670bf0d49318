//! NVRTC, the run-time compiler, loaded from a given file: as much of it as compiling to PTX needs.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use libloading::Library;

use crate::error::Error;

type Status = c_int;
type Program = *mut c_void;

const SUCCESS: Status = 0;
const COMPILATION_ERROR: Status = 6;

/// Declares the table of entry points and how to fill it.
macro_rules! entry_points {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        struct EntryPoints {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl EntryPoints {
            fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: The types are those of nvrtc.h, where these functions have not changed since they appeared.
                unsafe { Ok(Self { $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

entry_points! {
    version = b"nvrtcVersion\0": fn(*mut c_int, *mut c_int) -> Status;
    error_string = b"nvrtcGetErrorString\0": fn(Status) -> *const c_char;
    create = b"nvrtcCreateProgram\0":
        fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Status;
    destroy = b"nvrtcDestroyProgram\0": fn(*mut Program) -> Status;
    compile = b"nvrtcCompileProgram\0": fn(Program, c_int, *const *const c_char) -> Status;
    log_size = b"nvrtcGetProgramLogSize\0": fn(Program, *mut usize) -> Status;
    log = b"nvrtcGetProgramLog\0": fn(Program, *mut c_char) -> Status;
    ptx_size = b"nvrtcGetPTXSize\0": fn(Program, *mut usize) -> Status;
    ptx = b"nvrtcGetPTX\0": fn(Program, *mut c_char) -> Status;
}

/// A source text under the name by which it is included or reported.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// What a compilation gave.
pub(crate) struct Compiled {
    /// The PTX, or nothing if the source has errors.
    pub(crate) ptx: Option<String>,
    /// The compiler's messages: errors, warnings or nothing.
    pub(crate) log: String,
}

/// A loaded NVRTC.
pub(crate) struct Nvrtc {
    entry_points: EntryPoints,
    path: PathBuf,
    // The entry points stay valid for as long as this.
    _library: Library,
}

impl Nvrtc {
    /// Loads the library at `path`.
    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        let failure = |source| Error::Load { path: path.to_owned(), source };
        // SAFETY: What runs on loading are the initialisers of the file that the caller names as an NVRTC.
        let library = unsafe { Library::new(path) }.map_err(failure)?;
        let entry_points = EntryPoints::resolve(&library).map_err(failure)?;
        Ok(Self { entry_points, path: path.to_owned(), _library: library })
    }

    /// The file this was loaded from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The release, such as (12, 4).
    pub(crate) fn version(&self) -> Result<(c_int, c_int), Error> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: Both pointers are to live integers.
        self.check("nvrtcVersion", unsafe { (self.entry_points.version)(&raw mut major, &raw mut minor) })?;
        Ok((major, minor))
    }

    /// Compiles `source`, whose includes are found among `headers` and nowhere else.
    pub(crate) fn compile(
        &self,
        source: &Source,
        headers: &[Source],
        options: &[String],
    ) -> Result<Compiled, Error> {
        let program = self.create(source, headers)?;
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let options = pointers(&options);
        // SAFETY: The program lives, and `options` is an array of that many strings.
        let status =
            unsafe { (self.entry_points.compile)(program.handle, count(options.len()), options.as_ptr()) };
        if status != COMPILATION_ERROR {
            self.check("nvrtcCompileProgram", status)?;
        }
        let log =
            self.text("nvrtcGetProgramLog", &program, self.entry_points.log_size, self.entry_points.log)?;
        let ptx = if status == SUCCESS {
            Some(self.text("nvrtcGetPTX", &program, self.entry_points.ptx_size, self.entry_points.ptx)?)
        } else {
            None
        };
        Ok(Compiled { ptx, log: log.trim().to_owned() })
    }

    fn create(&self, source: &Source, headers: &[Source]) -> Result<OwnedProgram<'_>, Error> {
        let text = c_string(&source.text);
        let name = c_string(&source.name);
        let header_texts: Vec<CString> = headers.iter().map(|header| c_string(&header.text)).collect();
        let header_names: Vec<CString> = headers.iter().map(|header| c_string(&header.name)).collect();
        let mut handle = null_mut();
        // SAFETY: All strings end in NUL and outlive the call, which copies them; both arrays have as many elements as
        // it is told.
        let status = unsafe {
            (self.entry_points.create)(
                &raw mut handle,
                text.as_ptr(),
                name.as_ptr(),
                count(headers.len()),
                pointers(&header_texts).as_ptr(),
                pointers(&header_names).as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", status)?;
        Ok(OwnedProgram { nvrtc: self, handle })
    }

    /// One of the texts of a program: NVRTC first says how long it is, NUL included, and then writes it.
    fn text(
        &self,
        call: &'static str,
        program: &OwnedProgram<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        write: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<String, Error> {
        let mut bytes = 0;
        // SAFETY: The program lives and the pointer is to a live integer.
        self.check(call, unsafe { size(program.handle, &raw mut bytes) })?;
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: The buffer has the size that NVRTC asked for.
        self.check(call, unsafe { write(program.handle, buffer.as_mut_ptr().cast()) })?;
        buffer.retain(|&byte| byte != 0);
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: For any status, known or not, this returns a string that lives as long as the library.
        let reason = unsafe { CStr::from_ptr((self.entry_points.error_string)(status)) };
        Err(Error::Nvrtc { call, reason: reason.to_string_lossy().into_owned() })
    }
}

/// A program of NVRTC, destroyed with this.
struct OwnedProgram<'a> {
    nvrtc: &'a Nvrtc,
    handle: Program,
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: The handle came from nvrtcCreateProgram and is destroyed only here. A failure could only be that the
        // handle is none, so its status says nothing.
        unsafe { (self.nvrtc.entry_points.destroy)(&raw mut self.handle) };
    }
}

/// Text of the repository as a C string; a NUL in it would end it early, so it is dropped.
fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    CString::new(bytes).expect("NULs were removed")
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("fewer than 2^31 headers and options")
}
