//! Functions that answer from what is known: properties, memory, windows and parameters.

use std::ffi::{c_char, c_int, c_void};

use crate::{
    abi::{CommProperties, Handle},
    answers::{answered, function},
    comm, group, memory, parameters,
    pointers::OutPointer,
    properties,
};

nccl! {
    /// Describes a communicator.
    fn ncclCommQueryProperties/pncclCommQueryProperties(comm: Handle, props: *mut CommProperties) {
        properties::query(comm, props)
    }

    /// One of the numbers about a communicator's memory.
    fn ncclCommMemStats/pncclCommMemStats(comm: Handle, stat: c_int, value: *mut u64) {
        let place = OutPointer::at(value, "value")?;
        properties::memory(comm, stat).map(|number| place.set(number))
    }

    /// Gives the memory of a communicator back until it is resumed. Its calls are refused meanwhile.
    fn ncclCommSuspend/pncclCommSuspend(comm: Handle, flags: c_int) {
        group::noted(properties::suspend(comm, flags))
    }

    /// Resumes a communicator that was suspended.
    fn ncclCommResume/pncclCommResume(comm: Handle) {
        group::noted(properties::resume(comm))
    }

    /// The memory that this rank has registered as a window.
    fn ncclWinGetUserPtr/pncclWinGetUserPtr(comm: Handle, win: Handle, outUserPtr: *mut *mut c_void) {
        let place = OutPointer::at(outUserPtr, "outUserPtr")?;
        memory::of_window(comm, win).map(|memory| place.set(memory))
    }

    /// The address at which this rank's device reaches a peer's part of a window, or NULL.
    fn ncclGetPeerDevicePointer/pncclGetPeerDevicePointer(
        window: Handle, offset: usize, peer: c_int, outPtr: *mut *mut c_void,
    ) {
        let place = OutPointer::at(outPtr, "outPtr")?;
        memory::of_peer(window, offset, peer).map(|memory| place.set(memory))
    }

    /// The same as [`ncclGetPeerDevicePointer`], for a rank of this node. With several nodes windows are not mapped.
    fn ncclGetLsaDevicePointer/pncclGetLsaDevicePointer(
        window: Handle, offset: usize, lsaRank: c_int, outPtr: *mut *mut c_void,
    ) {
        let place = OutPointer::at(outPtr, "outPtr")?;
        memory::of_lsa_peer(window, offset, lsaRank).map(|memory| place.set(memory))
    }

    /// The multimem address of a window: there is none, so it is NULL.
    fn ncclGetLsaMultimemDevicePointer/pncclGetLsaMultimemDevicePointer(
        window: Handle, _offset: usize, outPtr: *mut *mut c_void,
    ) {
        let place = OutPointer::at(outPtr, "outPtr")?;
        comm::with_window(window).map(|_| place.set(std::ptr::null_mut()))
    }

    /// The handle of a parameter.
    fn ncclParamBind/pncclParamBind(out: *mut Handle, key: *const c_char) {
        parameters::bind(OutPointer::at(out, "out")?, key)
    }

    /// The value of a parameter as a text.
    fn ncclParamGetStr/pncclParamGetStr(h: Handle, out: *mut *const c_char) {
        parameters::text(h, OutPointer::at(out, "out")?)
    }

    /// The value of a parameter as bytes.
    fn ncclParamGet/pncclParamGet(h: Handle, out: *mut c_void, maxLen: c_int, len: *mut c_int) {
        parameters::bytes(h, out, maxLen, OutPointer::at(len, "len")?)
    }

    /// The value of the parameter that a key names, as a text.
    fn ncclParamGetParameter/pncclParamGetParameter(
        key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int,
    ) {
        parameters::by_key(key, OutPointer::at(value, "value")?, OutPointer::at(valueLen, "valueLen")?)
    }

    /// The keys of all parameters.
    fn ncclParamGetAllParameterKeys/pncclParamGetAllParameterKeys(
        table: *mut *mut *const c_char, tableLen: *mut c_int,
    ) {
        parameters::keys(OutPointer::at(table, "table")?, OutPointer::at(tableLen, "tableLen")?)
    }
}

/// Defines the functions that give the value of a parameter as a number.
macro_rules! numbers {
    ($($name:ident/$other:ident: $type:ty;)*) => {
        nccl! {
            $(
                #[doc = concat!("The value of a parameter as an `", stringify!($type), "`.")]
                fn $name/$other(h: Handle, out: *mut $type) {
                    parameters::number(h, OutPointer::at(out, "out")?)
                }
            )*
        }
    };
}

numbers! {
    ncclParamGetI8/pncclParamGetI8: i8;
    ncclParamGetI16/pncclParamGetI16: i16;
    ncclParamGetI32/pncclParamGetI32: i32;
    ncclParamGetI64/pncclParamGetI64: i64;
    ncclParamGetU8/pncclParamGetU8: u8;
    ncclParamGetU16/pncclParamGetU16: u16;
    ncclParamGetU32/pncclParamGetU32: u32;
    ncclParamGetU64/pncclParamGetU64: u64;
}

plain! {
    /// Writes a line for each parameter.
    fn ncclParamDumpAll/pncclParamDumpAll() -> () {
        // The failure of a malformed variable is written as a line, and kept for ncclGetLastError.
        let _ = answered("ncclParamDumpAll", parameters::dump);
    }
}
