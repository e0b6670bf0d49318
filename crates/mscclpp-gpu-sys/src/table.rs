//! The macros that declare a table of entry points, and the codes that they return.

use std::ffi::CStr;

/// Declares a table: for each function a field, the exported names (newest first) and the parameters. All functions
/// return `$result`. `$since` is the oldest release that has every required function.
macro_rules! entry_points {
    (
        $(#[$about:meta])*
        table $table:ident -> $result:ty, since $since:expr;
        required { $($field:ident : $($name:literal)|+ => fn($($arg:ty),* $(,)?);)* }
        optional { $($opt_field:ident : $($opt_name:literal)|+ => fn($($opt_arg:ty),* $(,)?);)* }
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each field is documented by the name of its function")]
        pub struct $table {
            $(#[doc = concat!($("`", $name, "` "),+)] pub $field: unsafe extern "C" fn($($arg),*) -> $result,)*
            $(#[doc = concat!($("`", $opt_name, "` "),+)]
              pub $opt_field: Option<unsafe extern "C" fn($($opt_arg),*) -> $result>,)*
            library: $crate::library::Opened,
        }

        impl $table {
            /// # Safety
            /// `library` is the one that has these functions.
            unsafe fn resolve(library: $crate::library::Opened) -> Result<Self, $crate::LoadError> {
                Ok(Self {
                    // SAFETY: the signatures are those of the library's header; the table keeps the library open.
                    $($field: unsafe {
                        library.required(&[$($crate::table::c_name(concat!($name, "\0"))),+], $since)?
                    },)*
                    // SAFETY: as above.
                    $($opt_field: unsafe {
                        library.optional(&[$($crate::table::c_name(concat!($opt_name, "\0"))),+])
                    },)*
                    library,
                })
            }

            /// The name under which the library was found.
            #[must_use]
            pub fn path(&self) -> &str {
                self.library.path()
            }
        }
    };
}
pub(crate) use entry_points;

pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with a NUL inside"),
    }
}

/// Declares the known codes of a result, each with its name in the library's header.
macro_rules! codes {
    ($result:ident: $($name:ident = $code:literal, $name_there:literal;)*) => {
        impl $result {
            $(#[doc = concat!("`", $name_there, "`")] pub const $name: Self = Self($code);)*

            /// The name of a code that this crate knows, without asking the library, which may not be there.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($name_there),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use codes;
