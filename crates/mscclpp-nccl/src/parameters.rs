//! `ncclParam...`: the variables that have an effect on this library, and their values, for C code.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr,
    sync::OnceLock,
};

use crate::{
    abi::Handle,
    comm::as_int,
    env::{Env, Value},
    failure::Failure,
    pointers::OutPointer,
    report,
};

/// A parameter. Its address is its handle.
struct Parameter {
    key: CString,
    value: Value,
    /// The value as a text.
    text: CString,
}

/// The parameters of this process, read at the first call. They live until the process ends, and so do their handles and texts.
fn all() -> Result<&'static [Parameter], Failure> {
    static ALL: OnceLock<Result<Vec<Parameter>, Failure>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let c = |text: &str| CString::new(text).unwrap_or_default();
        let parameter = |(key, value): (&str, Value)| {
            let text = match &value {
                Value::Number(number) => number.map_or_else(String::new, |number| number.to_string()),
                Value::Text(text) => text.clone(),
            };
            Parameter { key: c(key), value, text: c(&text) }
        };
        Ok(Env::parameters()?.into_iter().map(parameter).collect())
    });
    all.as_deref().map_err(Clone::clone)
}

/// The parameter of a key.
///
/// # Safety
/// `key` is null or points to a C string.
unsafe fn of_key(key: *const c_char) -> Result<&'static Parameter, Failure> {
    if key.is_null() {
        return Err(Failure::argument("`key` is NULL"));
    }
    // SAFETY: the caller's promise.
    let key = unsafe { CStr::from_ptr(key) };
    all()?.iter().find(|parameter| parameter.key.as_c_str() == key).ok_or_else(|| {
        Failure::argument(format!(
            "`key` is {key:?}, which has no effect on this library; ncclParamGetAllParameterKeys lists what has"
        ))
    })
}

fn of(handle: Handle) -> Result<&'static Parameter, Failure> {
    let parameter = all()?.iter().find(|parameter| ptr::from_ref(*parameter).addr() == handle.addr());
    parameter.ok_or_else(|| Failure::argument(format!("`h` is {handle:p}, which ncclParamBind did not give")))
}

impl Parameter {
    fn number(&self) -> Result<i64, Failure> {
        match self.value {
            Value::Number(Some(number)) => Ok(number),
            Value::Number(None) => {
                Err(Failure::usage(format!("{:?} is not set, and has no default", self.key)))
            }
            Value::Text(_) => Err(Failure::argument(format!("{:?} is a text: {:?}", self.key, self.text))),
        }
    }
}

/// `ncclParamBind`.
///
/// # Safety
/// `key` is null or points to a C string.
pub(crate) unsafe fn bind(place: OutPointer<Handle>, key: *const c_char) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let parameter = unsafe { of_key(key)? };
    place.set(ptr::from_ref(parameter).cast_mut().cast());
    Ok(())
}

/// `ncclParamGetI8` and the others of numbers.
pub(crate) fn number<T: TryFrom<i64>>(handle: Handle, place: OutPointer<T>) -> Result<(), Failure> {
    let parameter = of(handle)?;
    let number = parameter.number()?;
    let fitting = T::try_from(number);
    let too_large = |_| {
        Failure::argument(format!(
            "{:?} is {number}, which is no {}",
            parameter.key,
            std::any::type_name::<T>()
        ))
    };
    fitting.map(|number| place.set(number)).map_err(too_large)
}

/// `ncclParamGetStr`.
pub(crate) fn text(handle: Handle, place: OutPointer<*const c_char>) -> Result<(), Failure> {
    of(handle).map(|parameter| place.set(parameter.text.as_ptr()))
}

/// `ncclParamGet`: copies a number as the 8 bytes of an `int64_t`, or the bytes of a text, without a byte of zero at its end.
///
/// # Safety
/// `out` is null, or valid for writes of `most` bytes.
pub(crate) unsafe fn bytes(
    handle: Handle,
    out: *mut c_void,
    most: c_int,
    len: OutPointer<c_int>,
) -> Result<(), Failure> {
    let parameter = of(handle)?;
    let number;
    let bytes = match &parameter.value {
        Value::Number(_) => {
            number = parameter.number()?.to_ne_bytes();
            number.as_slice()
        }
        Value::Text(_) => parameter.text.as_bytes(),
    };
    if out.is_null() || usize::try_from(most).map_or(true, |most| most < bytes.len()) {
        return Err(Failure::argument(format!(
            "`out` is {out:p} and `maxLen` {most}; {:?} has {} bytes",
            parameter.key,
            bytes.len()
        )));
    }
    // SAFETY: the caller's promise; the place was checked above.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    len.set(as_int(bytes.len()));
    Ok(())
}

/// `ncclParamGetParameter`.
///
/// # Safety
/// `key` is null or points to a C string.
pub(crate) unsafe fn by_key(
    key: *const c_char,
    value: OutPointer<*const c_char>,
    len: OutPointer<c_int>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { of_key(key)? }.text.as_c_str();
    value.set(text.as_ptr());
    len.set(as_int(text.count_bytes()));
    Ok(())
}

/// `ncclParamGetAllParameterKeys`. The table is valid until the thread calls this again.
pub(crate) fn keys(table: OutPointer<*mut *const c_char>, len: OutPointer<c_int>) -> Result<(), Failure> {
    thread_local! {
        static GIVEN: RefCell<Vec<*const c_char>> = const { RefCell::new(Vec::new()) };
    }
    let all = all()?;
    GIVEN.with_borrow_mut(|given| {
        *given = all.iter().map(|parameter| parameter.key.as_ptr()).collect();
        table.set(given.as_mut_ptr());
        len.set(as_int(given.len()));
    });
    Ok(())
}

/// `ncclParamDumpAll`: writes a line for each parameter.
pub(crate) fn dump() -> Result<(), Failure> {
    for Parameter { key, text, .. } in all()? {
        report::always(&format!("{}={}", key.to_string_lossy(), text.to_string_lossy()));
    }
    Ok(())
}
