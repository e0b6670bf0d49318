//! The macros that declare a table of entry points, and the codes that they return.

use std::ffi::CStr;

/// A function of a library, and its name in messages: the symbol's, without the version at its end.
#[derive(Debug, Clone, Copy)]
pub struct Entry<F>(pub &'static str, pub F);

impl<F> Entry<F> {
    /// Passes the function to `call`, and returns the function's name and the result of `call`.
    pub fn call<R>(self, call: impl FnOnce(F) -> R) -> (&'static str, R) {
        (self.0, call(self.1))
    }
}

/// The names that a function may have in a library, newest first.
pub(crate) type Names = &'static [&'static CStr];

/// Declares a table of functions that several libraries have under names of their own, and a struct `$names`, in which each
/// library lists its names. The functions return `$result` unless a type is given.
macro_rules! shared_entry_points {
    (
        $(#[$about:meta])*
        table $table:ident $(<$api:ident: $bound:ident>)? -> $result:ty, named by $names:ident;
        required { $($field:ident: fn($($arg:ty),* $(,)?) $(-> $returned:ty)?;)* }
        optional { $($opt_field:ident: fn($($opt_arg:ty),* $(,)?);)* }
    ) => {
        $(#[$about])*
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each field is documented under the name of its function")]
        pub struct $table $(<$api: $bound>)? {
            $(pub $field: $crate::Entry<
                unsafe extern "C" fn($($arg),*) -> $crate::table::first!($($returned,)? $result)
            >,)*
            $(pub $opt_field: Option<$crate::Entry<unsafe extern "C" fn($($opt_arg),*) -> $result>>,)*
        }

        pub(crate) struct $names {
            $(pub(crate) $field: $crate::table::Names,)*
            $(pub(crate) $opt_field: $crate::table::Names,)*
        }

        impl $(<$api: $bound>)? $table $(<$api>)? {
            /// Looks up each function under the names that `names` lists for it.
            ///
            /// # Safety
            /// `library` must have these functions under these names.
            pub(crate) unsafe fn resolve(
                library: &$crate::library::Opened,
                names: &$names,
                since: &'static str,
            ) -> Result<Self, $crate::LoadError> {
                // SAFETY: the signatures are those of the library's header; the caller keeps the library open.
                unsafe {
                    Ok(Self {
                        $($field: library.required(names.$field, since)?,)*
                        $($opt_field: library.optional(names.$opt_field),)*
                    })
                }
            }
        }
    };
}
pub(crate) use shared_entry_points;

/// Expands to the first of the given types.
macro_rules! first {
    ($first:ty $(, $rest:ty)?) => {
        $first
    };
}
pub(crate) use first;

/// Declares the table of a driver, which is loaded once: its types, the names of the functions that all drivers have, and for
/// each further function a field, the exported names (newest first) and the parameters. All functions return `$result`.
macro_rules! entry_points {
    (
        $(#[$about:meta])*
        table $table:ident -> $result:ty, of $library:ident;
        types { $($type_name:ident = $type:ty,)* }
        common { $($common:ident: $($common_name:literal)|+,)* }
        required { $($field:ident : $($name:literal)|+ => fn($($arg:ty),* $(,)?);)* }
        optional { $($opt_field:ident : $($opt_name:literal)|+ => fn($($opt_arg:ty),* $(,)?);)* }
    ) => {
        $(#[$about])*
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each field is documented by the name of its function")]
        pub struct $table {
            /// The functions that all drivers have.
            pub common: $crate::Functions<Self>,
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $result,)*
            $(pub $opt_field: Option<unsafe extern "C" fn($($opt_arg),*) -> $result>,)*
            library: $crate::library::Opened,
        }

        impl $table {
            /// The process's library, found and resolved at the first call but not initialised.
            ///
            /// # Errors
            /// [`LoadError`](crate::LoadError), the same at every call.
            pub fn load() -> Result<&'static Self, $crate::LoadError> {
                static LOADED: std::sync::OnceLock<Result<$table, $crate::LoadError>> = std::sync::OnceLock::new();
                LOADED.get_or_init(Self::open).as_ref().map_err(Clone::clone)
            }

            fn open() -> Result<Self, $crate::LoadError> {
                let names = $crate::functions::FunctionNames { $($common: &[$($common_name),+],)* };
                // SAFETY: every candidate is a name of this library, which has these functions under these names, with the
                // signatures of its header. The table keeps the library open.
                unsafe {
                    let library = $library.open()?;
                    Ok(Self {
                        common: $crate::Functions::resolve(&library, &names, $library.since)?,
                        $($field: library.required(&[$($name),+], $library.since)?.1,)*
                        $($opt_field: library.optional(&[$($opt_name),+]).map(|$crate::Entry(_, f)| f),)*
                        library,
                    })
                }
            }

            /// The name or path from which the library was loaded.
            #[must_use]
            pub fn path(&self) -> &str {
                self.library.path()
            }
        }

        impl $crate::Api for $table {
            type Code = $result;
            $(type $type_name = $type;)*

            fn load() -> Result<&'static Self, $crate::LoadError> {
                Self::load()
            }

            fn path(&self) -> &str {
                self.path()
            }

            fn functions(&self) -> &$crate::Functions<Self> {
                &self.common
            }
        }
    };
}
pub(crate) use entry_points;

/// Declares the result type of a driver's functions, and the known codes, each with its name in the driver's header.
macro_rules! codes {
    ($(#[$about:meta])* $result:ident: $($name:ident = $code:literal, $name_there:literal;)*) => {
        $(#[$about])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[must_use]
        pub struct $result(pub u32);

        impl $result {
            $(#[doc = concat!("`", $name_there, "`")] pub const $name: Self = Self($code);)*
        }

        impl $crate::Code for $result {
            const SUCCESS: Self = Self::SUCCESS;
            const NOT_READY: Self = Self::NOT_READY;
            const DEINITIALIZED: Self = Self::DEINITIALIZED;
            const NOT_FOUND: Self = Self::NOT_FOUND;

            fn number(self) -> u32 {
                self.0
            }

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($name_there),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use codes;
