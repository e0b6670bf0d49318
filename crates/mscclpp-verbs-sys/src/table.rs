//! The table of libibverbs' functions.

use std::{
    env,
    ffi::{CStr, OsStr, OsString, c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use crate::{
    _compat_ibv_port_attr, bindings, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_event_type, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_state, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr,
    library::{Library, LoadError, Missing, NAME, VARIABLE},
};

/// The interface version of the functions that every libibverbs has.
const BASE: &CStr = c"IBVERBS_1.1";

/// Declares the table: for each function a field, the exported name and the signature. An optional function also names
/// the version of the interface that brought it and the release of rdma-core that has it.
macro_rules! entry_points {
    (
        required { $($field:ident : $symbol:ident => fn($($arg:ty),* $(,)?) $(-> $result:ty)?;)* }
        optional {
            $($opt_field:ident : $opt_symbol:ident, $version:literal, $release:literal
                => fn($($opt_arg:ty),* $(,)?) -> $opt_result:ty;)*
        }
    ) => {
        /// libibverbs' functions. The library's manual documents each under the name given.
        ///
        /// All fields are public: a table can be filled with other functions, such as those of a simulated adapter.
        /// Functions that C inlines (posting, polling, [`Verbs::query_port`]) go through the context that they act on.
        #[derive(Debug, Clone)]
        pub struct Verbs {
            $(#[doc = concat!("`", stringify!($symbol), "`")]
              pub $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            $(#[doc = concat!("`", stringify!($opt_symbol), "`, from rdma-core ", $release, " on")]
              pub $opt_field: Option<unsafe extern "C" fn($($opt_arg),*) -> $opt_result>,)*
            /// The name or path of the library that has the functions.
            pub origin: String,
            /// The optional functions that the library lacks.
            pub missing: Vec<Missing>,
        }

        // The signatures above are those of the header.
        const _: () = {
            $(let _: unsafe extern "C" fn($($arg),*) $(-> $result)? = bindings::$symbol;)*
            $(let _: unsafe extern "C" fn($($opt_arg),*) -> $opt_result = bindings::$opt_symbol;)*
        };

        impl Verbs {
            /// Looks up all functions of the table.
            ///
            /// # Safety
            /// `library` must be libibverbs.
            unsafe fn resolve(library: &Library) -> Result<Self, LoadError> {
                let mut missing = Vec::new();
                Ok(Self {
                    $($field: match library.find(c_name(concat!(stringify!($symbol), "\0")), BASE) {
                        // SAFETY: the signature is the header's, and the library is never unloaded.
                        Some(address) => unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $result)?>(address)
                        },
                        None => {
                            let path = library.path().to_owned();
                            return Err(LoadError::Symbol { path, symbol: stringify!($symbol) });
                        }
                    },)*
                    $($opt_field: {
                        let version = c_name(concat!($version, "\0"));
                        let address = library.find(c_name(concat!(stringify!($opt_symbol), "\0")), version);
                        if address.is_none() {
                            let reason = format!(
                                "{} is too old, it comes with rdma-core {} ({})",
                                library.path(), $release, $version,
                            );
                            missing.push(Missing { symbol: stringify!($opt_symbol), reason });
                        }
                        // SAFETY: the signature is the header's, and the library is never unloaded.
                        address.map(|address| unsafe {
                            std::mem::transmute::<
                                *mut c_void, unsafe extern "C" fn($($opt_arg),*) -> $opt_result,
                            >(address)
                        })
                    },)*
                    origin: library.path().to_owned(),
                    missing,
                })
            }

            /// The functions with which this program is linked. The optional ones are looked up in the library, because
            /// not every libibverbs declares them.
            #[cfg(feature = "rdma-sys")]
            fn linked() -> Result<Self, LoadError> {
                // SAFETY: this is libibverbs, which this process has loaded already.
                let mut table = unsafe { Self::resolve(&Library::open(OsStr::new(NAME), "linked")?)? };
                $(
                    // SAFETY: the signature is the header's. rdma-sys has other names for types of the same layout, which
                    // the test `layout` compares.
                    table.$field = unsafe {
                        std::mem::transmute::<*const (), unsafe extern "C" fn($($arg),*) $(-> $result)?>(
                            rdma_sys::$symbol as *const (),
                        )
                    };
                )*
                "linked through rdma-sys".clone_into(&mut table.origin);
                Ok(table)
            }
        }
    };
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with a NUL inside"),
    }
}

impl Verbs {
    /// The process's libibverbs, loaded at the first call from the file that the environment variable `MSCCLPP_IBV_SO`
    /// names, otherwise from `libibverbs.so.1`. No device is opened. With feature `rdma-sys`, the library with which the
    /// program is linked takes the place of `libibverbs.so.1`.
    ///
    /// # Errors
    /// [`LoadError`], the same at every call.
    pub fn load() -> Result<&'static Self, &'static LoadError> {
        static VERBS: OnceLock<Result<Verbs, LoadError>> = OnceLock::new();
        VERBS.get_or_init(|| Self::find(env::var_os(VARIABLE))).as_ref()
    }

    fn find(named: Option<OsString>) -> Result<Self, LoadError> {
        let named = named.filter(|path| !path.is_empty());
        #[cfg(feature = "rdma-sys")]
        if named.is_none() {
            return Self::linked();
        }
        let (path, named_by) = match &named {
            Some(path) => (path.as_os_str(), "named by MSCCLPP_IBV_SO"),
            None => {
                (OsStr::new(NAME), "in LD_LIBRARY_PATH, the loader's cache and the system's library folders")
            }
        };
        // SAFETY: the name is that of libibverbs; a user who names a file vouches for it.
        unsafe { Self::resolve(&Library::open(path, named_by)?) }
    }

    /// Loads a separate table from the file `path`. The dynamic loader searches for a name without a folder.
    ///
    /// # Safety
    /// The file must be libibverbs, if it exists.
    ///
    /// # Errors
    /// [`LoadError`] if the file cannot be loaded or lacks a function.
    pub unsafe fn open(path: impl AsRef<OsStr>) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise is the same.
        unsafe { Self::resolve(&Library::open(path.as_ref(), "as asked")?) }
    }

    /// The optional functions that the library lacks, each with the reason.
    #[must_use]
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }
}

entry_points! {
    required {
        get_device_list: ibv_get_device_list => fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list: ibv_free_device_list => fn(*mut *mut ibv_device);
        get_device_name: ibv_get_device_name => fn(*mut ibv_device) -> *const c_char;
        open_device: ibv_open_device => fn(*mut ibv_device) -> *mut ibv_context;
        close_device: ibv_close_device => fn(*mut ibv_context) -> c_int;

        query_device: ibv_query_device => fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        query_port_compat: ibv_query_port => fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        query_gid: ibv_query_gid => fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        get_async_event: ibv_get_async_event => fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event: ibv_ack_async_event => fn(*mut ibv_async_event);

        alloc_pd: ibv_alloc_pd => fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd: ibv_dealloc_pd => fn(*mut ibv_pd) -> c_int;
        reg_mr: ibv_reg_mr => fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr: ibv_dereg_mr => fn(*mut ibv_mr) -> c_int;

        create_comp_channel: ibv_create_comp_channel => fn(*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel: ibv_destroy_comp_channel => fn(*mut ibv_comp_channel) -> c_int;
        create_cq: ibv_create_cq
            => fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq: ibv_destroy_cq => fn(*mut ibv_cq) -> c_int;
        get_cq_event: ibv_get_cq_event => fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events: ibv_ack_cq_events => fn(*mut ibv_cq, c_uint);

        create_qp: ibv_create_qp => fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp: ibv_modify_qp => fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        query_qp: ibv_query_qp => fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        destroy_qp: ibv_destroy_qp => fn(*mut ibv_qp) -> c_int;

        port_state_str: ibv_port_state_str => fn(ibv_port_state) -> *const c_char;
        event_type_str: ibv_event_type_str => fn(ibv_event_type) -> *const c_char;
    }
    optional {
        reg_mr_iova2: ibv_reg_mr_iova2, "IBVERBS_1.8", "28"
            => fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        query_gid_table: _ibv_query_gid_table, "IBVERBS_1.11", "32"
            => fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        reg_dmabuf_mr: ibv_reg_dmabuf_mr, "IBVERBS_1.12", "34"
            => fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_says_what_to_do() {
        let error = Verbs::find(Some("/nowhere/libibverbs.so.1".into())).unwrap_err();
        let text = error.to_string();
        for part in
            ["/nowhere/libibverbs.so.1", "named by MSCCLPP_IBV_SO", "No such file", "ibverbs-providers"]
        {
            assert!(text.contains(part), "{part} in: {text}");
        }
    }

    #[test]
    fn a_library_without_the_functions_is_an_error_that_names_the_first() {
        let error = Verbs::find(Some("libc.so.6".into())).unwrap_err();
        assert_eq!(error, LoadError::Symbol { path: "libc.so.6".to_owned(), symbol: "ibv_get_device_list" });
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_with_the_loaders_words() {
        let error = Verbs::find(Some("/proc/self/status".into())).unwrap_err();
        assert!(matches!(&error, LoadError::Library { reason, .. } if !reason.contains("/proc")), "{error}");
    }

    #[test]
    fn a_name_with_a_nul_byte_is_an_error() {
        // SAFETY: no file has this name.
        let error = unsafe { Verbs::open("libibverbs\0.so.1") }.unwrap_err();
        assert!(error.to_string().contains("NUL"), "{error}");
    }
}
