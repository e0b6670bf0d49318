//! Opens a shared library and finds functions in it, with errors that say what to do.

use std::{
    error::Error as _,
    ffi::{CStr, OsStr, OsString},
};

use libloading::Library as Handle;

use crate::Entry;

/// A library or one of its functions is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// None of the candidates can be loaded.
    #[error("{library} cannot be loaded; tried {}; {advice}", tried.join("; "))]
    Library {
        /// The library's description.
        library: &'static str,
        /// Every name that was tried, followed by the dynamic loader's message about it.
        tried: Vec<String>,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The library was found but is too old.
    #[error("{library} ({path}) has no function {symbol}: {since} or newer is needed")]
    Symbol {
        /// The library's description.
        library: &'static str,
        /// The name or path from which the library was loaded.
        path: String,
        /// The missing function.
        symbol: &'static str,
        /// The first version that has the function.
        since: &'static str,
    },
}

/// An open library and the name or path from which it was loaded.
#[derive(Debug)]
pub(crate) struct Opened {
    library: Handle,
    description: &'static str,
    path: String,
}

impl Opened {
    /// Opens the first of `candidates` that can be loaded.
    ///
    /// # Safety
    /// Each candidate must be the library that `description` says: loading runs its initialisers.
    pub(crate) unsafe fn first(
        description: &'static str,
        candidates: impl IntoIterator<Item = OsString>,
        advice: &'static str,
    ) -> Result<Self, LoadError> {
        let mut tried = Tried::default();
        for name in candidates {
            // SAFETY: the caller vouches for what is loaded.
            match unsafe { Handle::new(&name) } {
                Ok(library) => {
                    return Ok(Self { library, description, path: name.to_string_lossy().into_owned() });
                }
                Err(error) => tried.note(&name, &error),
            }
        }
        Err(LoadError::Library { library: description, tried: tried.lines(), advice })
    }

    /// Finds the first of `names` that the library has.
    ///
    /// # Safety
    /// `F` must be the function pointer type of each of them, and is only called while `self` lives.
    pub(crate) unsafe fn optional<F: Copy>(&self, names: &[&'static CStr]) -> Option<Entry<F>> {
        // SAFETY: the caller vouches for the type.
        let get = |name: &&CStr| unsafe { self.library.get::<F>(name.to_bytes_with_nul()) }.ok().map(|f| *f);
        names.iter().find_map(get).map(|function| Entry(in_messages(names), function))
    }

    /// Finds the first of `names` that the library has, and fails if there is none. The newest name stands first.
    ///
    /// # Safety
    /// The same as [`Opened::optional`].
    pub(crate) unsafe fn required<F: Copy>(
        &self,
        names: &[&'static CStr],
        since: &'static str,
    ) -> Result<Entry<F>, LoadError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.optional(names) }.ok_or_else(|| LoadError::Symbol {
            library: self.description,
            path: self.path.clone(),
            symbol: names.first().and_then(|name| name.to_str().ok()).unwrap_or("?"),
            since,
        })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// The name that messages give a function: the first of `names`, without the version at its end.
fn in_messages(names: &[&'static CStr]) -> &'static str {
    let name = names.first().and_then(|name| name.to_str().ok()).unwrap_or("?");
    name.rsplit_once("_v").map_or(name, |(name, _)| name)
}

/// A library before it is loaded: its possible names, and texts for messages.
pub(crate) struct Library {
    pub(crate) description: &'static str,
    /// Names without a folder go through the dynamic loader (`LD_LIBRARY_PATH`, the loader's cache).
    pub(crate) candidates: &'static [&'static str],
    pub(crate) advice: &'static str,
    /// The oldest release that has every required function.
    pub(crate) since: &'static str,
}

impl Library {
    /// Opens the first candidate that can be loaded.
    ///
    /// # Safety
    /// Each candidate is the library that the description says.
    pub(crate) unsafe fn open(&self) -> Result<Opened, LoadError> {
        // SAFETY: the caller vouches for the candidates.
        unsafe { Opened::first(self.description, self.candidates.iter().map(Into::into), self.advice) }
    }
}

/// Names that could not be loaded, grouped by reason.
#[derive(Default)]
struct Tried {
    by_reason: Vec<(String, Vec<String>)>,
}

impl Tried {
    /// Adds a name with the loader's message. That is in the error's source: libloading's own text says only that dlopen failed.
    fn note(&mut self, name: &OsStr, error: &libloading::Error) {
        let name = name.to_string_lossy().into_owned();
        let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let reason = words.strip_prefix(&format!("{name}: ")).unwrap_or(&words);
        match self.by_reason.iter_mut().find(|(known, _)| known == reason) {
            Some((_, names)) => names.push(name),
            None => self.by_reason.push((reason.to_owned(), vec![name])),
        }
    }

    fn lines(self) -> Vec<String> {
        self.by_reason.into_iter().map(|(reason, names)| format!("{} ({reason})", names.join(", "))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_was_tried() {
        // SAFETY: neither file exists.
        let error = unsafe {
            Opened::first("the thing", ["/nowhere/liba.so".into(), "libnone-such.so.7".into()], "install it")
        }
        .unwrap_err();
        let message = error.to_string();
        for part in ["the thing", "/nowhere/liba.so", "libnone-such.so.7", "No such file", "install it"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_missing_function_is_an_error_naming_it() {
        // SAFETY: this is the C library, which is loaded already.
        let libc = unsafe { Opened::first("the C library", ["libc.so.6".into()], "") }.unwrap();
        type Getpid = unsafe extern "C" fn() -> i32;
        // SAFETY: the type is that of getpid; no symbol has the first name.
        let getpid = unsafe { libc.required::<Getpid>(&[c"getpid_v9", c"getpid"], "1.0") }.unwrap();
        let Entry(name, getpid) = getpid;
        assert_eq!(name, "getpid");
        // SAFETY: getpid has no preconditions.
        assert_eq!(unsafe { getpid() } as u32, std::process::id());
        // SAFETY: there is no such symbol.
        let error = unsafe { libc.required::<Getpid>(&[c"no_such_call"], "C 99") }.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the C library (libc.so.6) has no function no_such_call: C 99 or newer is needed"
        );
    }
}
