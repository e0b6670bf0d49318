//! Compiles kernels at run time, with hiprtc. The result is a code object for one architecture, kept in the cache.

use std::ffi::{CString, c_char, c_int};

use mscclpp_gpu_sys::hip::{Hip, Hiprtc, HiprtcResult, Program};

use crate::{Error, KernelSource, Result, cache, driver::failure};

/// HIP's version is the major version times this, and the rest.
const VERSION_OF_MAJOR: c_int = 10_000_000;

/// Before ROCm 7, hiprtc declares some of the types that the device API declares, and in another way.
const HAS_TYPES: &str = "-DMSCCLPP_HIPRTC_HAS_TYPES";

/// The code of `source` for `architecture`, such as `gfx942:sramecc+:xnack-`: what the cache has, for which hiprtc is not
/// needed, else what hiprtc makes of it.
pub(super) fn code(hip: &Hip, source: &KernelSource<'_>, architecture: &str) -> Result<Vec<u8>> {
    let mut runtime = 0;
    // SAFETY: `runtime` is valid for the write.
    let result = unsafe { (hip.runtime_get_version)(&raw mut runtime) };
    failure::check(hip, result, "hipRuntimeGetVersion")?;

    let offload = format!("--offload-arch={architecture}");
    let mut options = vec![offload.as_str(), "-std=c++17", "-O3"];
    if runtime / VERSION_OF_MAJOR < 7 {
        options.push(HAS_TYPES);
    }
    let headers = cache::headers(source);
    let version = format!("HIP {runtime}");
    let mut parts = vec![version.as_str(), source.cuda()];
    parts.extend(&options);
    for (name, header) in &headers {
        parts.extend([name, header]);
    }
    let entry = cache::Entry::new(source.name(), "co", &parts);
    cache::get_or_make(&entry, || {
        let hiprtc = Hiprtc::load()
            .map_err(|error| Error::system(format!("loading hiprtc, to compile {}", source.name()), error))?;
        compile(hiprtc, source.name(), source.cuda(), &headers, &options)
    })
}

fn compile(
    hiprtc: &'static Hiprtc,
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
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: `program` is valid for the write; all texts are NUL-terminated and live, and both lists have that length.
    let result = unsafe {
        (hiprtc.create_program)(
            &raw mut program,
            source.as_ptr(),
            c_name.as_ptr(),
            length(names.len())?,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    check(result, "hiprtcCreateProgram")?;
    let program = Compilation { hiprtc, program };
    // SAFETY: the program lives; the options are NUL-terminated, live and that many.
    let result =
        unsafe { (hiprtc.compile_program)(program.program, length(options.len())?, options.as_ptr()) };
    match result {
        HiprtcResult::COMPILATION | HiprtcResult::INVALID_OPTION => {
            Err(Error::Compile { name: name.to_owned(), log: program.log()? })
        }
        result => check(result, "hiprtcCompileProgram").and_then(|()| program.code()),
    }
}

/// A program, destroyed when dropped.
struct Compilation {
    hiprtc: &'static Hiprtc,
    program: Program,
}

impl Compilation {
    fn code(&self) -> Result<Vec<u8>> {
        // SAFETY: the pair of functions belongs together.
        unsafe { self.bytes(self.hiprtc.get_code_size, self.hiprtc.get_code, "hiprtcGetCode") }
    }

    fn log(&self) -> Result<String> {
        // SAFETY: the pair of functions belongs together.
        let mut bytes = unsafe {
            self.bytes(self.hiprtc.get_program_log_size, self.hiprtc.get_program_log, "hiprtcGetProgramLog")?
        };
        bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// # Safety
    /// `write` writes as many bytes as `size_of` says.
    unsafe fn bytes(
        &self,
        size_of: unsafe extern "C" fn(Program, *mut usize) -> HiprtcResult,
        write: unsafe extern "C" fn(Program, *mut c_char) -> HiprtcResult,
        operation: &'static str,
    ) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program lives; `size` is valid for the write.
        check(unsafe { size_of(self.program, &raw mut size) }, format!("{operation}Size"))?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the program lives; the buffer has as many bytes as will be written (the caller's promise).
        check(unsafe { write(self.program, bytes.as_mut_ptr().cast()) }, operation)?;
        Ok(bytes)
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        let result = unsafe { (self.hiprtc.destroy_program)(&raw mut self.program) };
        if let Err(error) = check(result, "hiprtcDestroyProgram") {
            tracing::warn!(target: "mscclpp::gpu", "{error}");
        }
    }
}

fn check(result: HiprtcResult, operation: impl Into<String>) -> Result<()> {
    if result == HiprtcResult::SUCCESS {
        return Ok(());
    }
    let name = result.name().unwrap_or("a code that this build does not know");
    Err(Error::system(operation, format!("{name} ({})", result.0)))
}

fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::InvalidArgument(format!("{what} has a NUL byte inside")))
}

fn c_strings<'a>(what: &str, texts: impl Iterator<Item = &'a str>) -> Result<Vec<CString>> {
    texts.map(|text| c_string(what, text)).collect()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn length(len: usize) -> Result<c_int> {
    c_int::try_from(len).map_err(|_| Error::InvalidArgument(format!("{len} headers or options are too many")))
}
