//! Raw types and entry points of libibverbs, loaded at run time.
//!
//! [`Verbs`] is a table of the library's functions. The types and constants have their C names; `cargo xtask gen-verbs`
//! makes them from rdma-core's headers. The functions that C inlines are methods of the table. A C enumeration is an
//! integer type with constants, so a value that only a newer driver knows is a number like any other.
//!
//! Nothing here is safe or checked, and no type owns an object of the library: `mscclpp-ib` adds safety, checks and
//! ownership. Its tests fill a table of their own with the functions of a simulated adapter.
//!
//! Building this crate needs neither libibverbs nor its headers. With feature `rdma-sys`, which links libibverbs
//! through the crate of that name, it needs both, and librdmacm and libclang 14 as well; see [`Verbs::load`].
//!
//! ```
//! use mscclpp_verbs_sys::Verbs;
//!
//! match Verbs::load() {
//!     Ok(verbs) => {
//!         let mut count = 0;
//!         // SAFETY: `count` is valid for the write.
//!         let list = unsafe { (verbs.get_device_list)(&raw mut count) };
//!         println!("{}: {count} devices", verbs.origin);
//!         if !list.is_null() {
//!             // SAFETY: the list came from this library and is freed once.
//!             unsafe { (verbs.free_device_list)(list) };
//!         }
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "made by bindgen; libibverbs documents each name"
)]
mod bindings;
mod inline;
mod library;
mod table;

pub use bindings::*;
pub use library::{LoadError, Missing};
pub use table::Verbs;

/// `IBV_QPF_GRH_REQUIRED`, of [`ibv_port_attr::flags`]: address handles of this port need a GRH. The header defines it
/// by a macro.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;
/// `IBV_ACCESS_OPTIONAL_RANGE`: the access flags that an adapter may ignore. The header defines it by a macro.
pub const IBV_ACCESS_OPTIONAL_RANGE: ibv_access_flags = 0x3ff0_0000;
