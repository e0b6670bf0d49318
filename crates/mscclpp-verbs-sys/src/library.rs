//! Opens libibverbs and finds functions in it, with errors that say what to do.

use std::{
    ffi::{CStr, CString, OsStr, c_void},
    fmt,
    os::unix::ffi::OsStrExt,
};

/// The environment variable that names the library.
pub(crate) const VARIABLE: &str = "MSCCLPP_IBV_SO";
/// The library's name if the environment variable is not set.
pub(crate) const NAME: &str = "libibverbs.so.1";

const ADVICE: &str = "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL, Fedora, SUSE), \
     or name the library's file in MSCCLPP_IBV_SO";

/// libibverbs or one of its functions is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library cannot be loaded.
    #[error("libibverbs cannot be loaded: tried {path} ({named_by}): {reason}; {ADVICE}")]
    Library {
        /// The name or path that was tried.
        path: String,
        /// The reason why this name was tried, or where the dynamic loader looks for it.
        named_by: &'static str,
        /// The dynamic loader's message.
        reason: String,
    },
    /// The library was found but lacks a function: it is older than rdma-core 15, or a different library.
    #[error("{path} has no function {symbol}, so it is not libibverbs or too old; {ADVICE}")]
    Symbol {
        /// The name or path of the library.
        path: String,
        /// The missing function.
        symbol: &'static str,
    },
}

impl LoadError {
    /// The message without the advice at its end: what was tried and what was missing.
    #[must_use]
    pub fn reason(&self) -> String {
        let message = self.to_string();
        message.strip_suffix(ADVICE).map_or(message.as_str(), |rest| rest.trim_end_matches("; ")).to_owned()
    }

    /// Advice on how to make the library available.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        ADVICE
    }
}

/// A function that newer versions of the library have and the loaded one lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The function's name in C, such as `ibv_reg_dmabuf_mr`.
    pub symbol: &'static str,
    /// The reason why the function is missing, and the version that brought it.
    pub reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {}: {}", self.symbol, self.reason)
    }
}

/// An open library. It stays loaded until the process ends: its providers keep state in it and do not unload either.
#[derive(Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
    path: String,
}

impl Library {
    /// Loads a library.
    ///
    /// # Safety
    /// The file must be libibverbs, if it exists: loading runs its initialisers.
    pub(crate) unsafe fn open(path: &OsStr, named_by: &'static str) -> Result<Self, LoadError> {
        let name = path.to_string_lossy().into_owned();
        let failed = |reason| LoadError::Library { path: name.clone(), named_by, reason };
        let Ok(path) = CString::new(path.as_bytes()) else {
            return Err(failed("its name has a NUL byte".to_owned()));
        };
        // SAFETY: the caller vouches for the file. RTLD_LOCAL keeps its symbols from other libraries.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let words = loader_error();
            let reason = words.strip_prefix(&format!("{name}: ")).unwrap_or(&words);
            return Err(failed(reason.to_owned()));
        }
        Ok(Self { handle, path: name })
    }

    /// The address of `symbol` in the given version of the library's interface, or in any version if that has none.
    pub(crate) fn find(&self, symbol: &CStr, version: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library is open, and both texts end with NUL.
        #[cfg(target_env = "gnu")]
        let found = unsafe { libc::dlvsym(self.handle, symbol.as_ptr(), version.as_ptr()) };
        // Other C libraries do not have versions of symbols.
        #[cfg(not(target_env = "gnu"))]
        let (found, _) = (std::ptr::null_mut::<c_void>(), version);
        let found = if found.is_null() {
            // SAFETY: the library is open, and the text ends with NUL.
            unsafe { libc::dlsym(self.handle, symbol.as_ptr()) }
        } else {
            found
        };
        (!found.is_null()).then_some(found)
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// The dynamic loader's message about its last failure on this thread.
fn loader_error() -> String {
    // SAFETY: the text is this thread's own and is copied before the next call into the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic loader gives no reason".to_owned();
    }
    // SAFETY: not null, and dlerror returns strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
