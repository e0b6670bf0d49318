//! Compiles device code at run time, with NVRTC or hiprtc.

use std::ffi::{CStr, CString, c_char, c_int};

use mscclpp_gpu_sys::{
    Entry,
    rtc::{Program, Rtc, RtcResult},
};

use crate::{Error, Result};

/// Compiles `source` with the library and returns the result. The source's name is for messages. `headers` are pairs of
/// the name in `#include` and the text.
pub(crate) fn compile(
    rtc: &Rtc,
    name: &str,
    source: &str,
    headers: &[(&str, &str)],
    options: &[&str],
) -> Result<Vec<u8>> {
    let source = c_string("the source", source)?;
    let c_name = c_string("the name of the program", name)?;
    let header_names = c_strings("the name of a header", headers.iter().map(|(name, _)| *name))?;
    let header_texts = c_strings("a header", headers.iter().map(|(_, text)| *text))?;
    let options = c_strings("an option", options.iter().copied())?;

    let (names, texts, options) = (pointers(&header_names), pointers(&header_texts), pointers(&options));
    let (header_count, option_count) = (length(names.len())?, length(options.len())?);
    let Entry(operation, create) = rtc.functions.create_program;
    let (source, c_name, names, texts) = (source.as_ptr(), c_name.as_ptr(), names.as_ptr(), texts.as_ptr());
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: `program` is valid for the write; all texts are NUL-terminated and live, and both lists have that length.
    let result = unsafe { create(&raw mut program, source, c_name, header_count, texts, names) };
    check(rtc, result, operation)?;
    let program = Compilation { rtc, program };
    let Entry(operation, compile) = rtc.functions.compile_program;
    // SAFETY: the program lives; the options are NUL-terminated, live and that many.
    let result = unsafe { compile(program.program, option_count, options.as_ptr()) };
    if let RtcResult::COMPILATION | RtcResult::INVALID_OPTION = result {
        let log = text(program.bytes(rtc.functions.get_program_log_size, rtc.functions.get_program_log)?);
        return Err(Error::Compile { name: name.to_owned(), log });
    }
    check(rtc, result, operation)?;
    program.bytes(rtc.functions.get_code_size, rtc.functions.get_code)
}

/// Returns the text before the NUL.
pub(crate) fn text(mut bytes: Vec<u8>) -> String {
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A program, destroyed when dropped.
struct Compilation<'a> {
    rtc: &'a Rtc,
    program: Program,
}

impl Compilation<'_> {
    /// Returns the bytes that `write` writes, whose number `size_of` returns.
    fn bytes(
        &self,
        Entry(of_size, size_of): Entry<unsafe extern "C" fn(Program, *mut usize) -> RtcResult>,
        Entry(operation, write): Entry<unsafe extern "C" fn(Program, *mut c_char) -> RtcResult>,
    ) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program lives; `size` is valid for the write.
        check(self.rtc, unsafe { size_of(self.program, &raw mut size) }, of_size)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the program lives; the buffer has as many bytes as will be written, as the two belong together.
        check(self.rtc, unsafe { write(self.program, bytes.as_mut_ptr().cast()) }, operation)?;
        Ok(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        let Entry(operation, destroy) = self.rtc.functions.destroy_program;
        // SAFETY: made once, destroyed once.
        let result = unsafe { destroy(&raw mut self.program) };
        if let Err(error) = check(self.rtc, result, operation) {
            tracing::warn!(target: "mscclpp::gpu", "{error}");
        }
    }
}

pub(crate) fn check(rtc: &Rtc, result: RtcResult, operation: &str) -> Result<()> {
    if result == RtcResult::SUCCESS {
        return Ok(());
    }
    // SAFETY: this function takes any value and gives a static text.
    let words = unsafe { (rtc.functions.get_error_string.1)(result) };
    // SAFETY: not null, so a static NUL-terminated text.
    let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy());
    Err(Error::system(operation, format!("{} ({})", words.as_deref().unwrap_or("unknown"), result.0)))
}

fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{what} has a NUL byte inside")))
}

fn c_strings<'a>(what: &str, texts: impl Iterator<Item = &'a str>) -> Result<Vec<CString>> {
    texts.map(|text| c_string(what, text)).collect()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn length(len: usize) -> Result<c_int> {
    c_int::try_from(len).map_err(|_| Error::invalid(format!("{len} headers or options are too many")))
}
