//! The functions of hiprtc. A code object is the source with its headers: the simulated device compiles it when it is
//! loaded, and once before, so that compile errors are reported here.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    sync::Arc,
};

use mscclpp_gpu::{Error, KernelSource, Module};
use mscclpp_gpu_sys::rtc::{Program as Handle, RtcResult};
use parking_lot::Mutex;

use crate::{devices, entry::entry_points, table::Table};

/// The first 8 bytes of a code object. The length of the rest follows.
const MAGIC: u64 = u64::from_le_bytes(*b"fakecode");

/// A source as a code object holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) headers: Vec<(String, String)>,
}

struct Program {
    source: Source,
    compiled: Mutex<Compiled>,
}

#[derive(Default)]
struct Compiled {
    code: Option<Vec<u8>>,
    log: CString,
}

static PROGRAMS: Table<Program> = Table::new(5);

pub(crate) fn existing() -> u64 {
    PROGRAMS.len()
}

impl Source {
    fn encode(&self) -> Vec<u8> {
        let texts = [&self.name, &self.text].into_iter();
        let texts = texts.chain(self.headers.iter().flat_map(|(name, text)| [name, text]));
        let mut body = Vec::new();
        for text in texts {
            body.extend((text.len() as u64).to_le_bytes());
            body.extend(text.as_bytes());
        }
        let mut code = MAGIC.to_le_bytes().to_vec();
        code.extend((body.len() as u64).to_le_bytes());
        code.extend(body);
        code
    }

    /// # Safety
    /// `image` is a whole code object.
    pub(crate) unsafe fn decode(image: *const c_void) -> Option<Self> {
        // SAFETY: the caller's promise: a code object has at least 16 bytes.
        let [magic, length] = unsafe { image.cast::<[u64; 2]>().read_unaligned() };
        if magic != MAGIC {
            return None;
        }
        // SAFETY: that many bytes follow.
        let mut body =
            unsafe { std::slice::from_raw_parts(image.cast::<u8>().add(16), usize::try_from(length).ok()?) };
        let mut texts = Vec::new();
        while let Some((length, rest)) = body.split_first_chunk() {
            let (text, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            texts.push(String::from_utf8(text.to_vec()).ok()?);
            body = rest;
        }
        let mut texts = texts.into_iter();
        let (name, text) = (texts.next()?, texts.next()?);
        let mut headers = Vec::new();
        while let (Some(name), Some(text)) = (texts.next(), texts.next()) {
            headers.push((name, text));
        }
        Some(Self { name, text, headers })
    }

    /// Loads the source as a module of the calling thread's device.
    pub(crate) fn load(&self) -> Result<Module, Error> {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let source = KernelSource::new(&self.name, &self.text).with_headers(&headers);
        let device = devices::current_device()
            .map_err(|_| Error::InvalidArgument("the thread has no device".to_owned()))?;
        Module::load(&device.gpu, &source)
    }
}

/// Whether a header belongs to the source: the simulated device has those of the device API and of the C library
/// itself.
fn is_of_source(header: &str) -> bool {
    !header.starts_with("mscclpp/") && mscclpp_kernels::C_HEADERS.iter().all(|(name, _)| *name != header)
}

/// # Safety
/// `text` is NUL-terminated.
unsafe fn string(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn program(handle: Handle) -> Result<Arc<Program>, RtcResult> {
    PROGRAMS.get(handle.0).map_err(|_| RtcResult::INVALID_PROGRAM)
}

/// Takes any code and is not counted, like hiprtc's function.
#[unsafe(no_mangle)]
extern "C" fn hiprtcGetErrorString(result: RtcResult) -> *const c_char {
    let name = match result {
        RtcResult::INVALID_PROGRAM => c"HIPRTC_ERROR_INVALID_PROGRAM",
        RtcResult::INVALID_OPTION => c"HIPRTC_ERROR_INVALID_OPTION",
        RtcResult::COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        _ => c"Invalid HIPRTC error code",
    };
    name.as_ptr()
}

entry_points! { hiprtc:
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) {
        // SAFETY: the caller promises that both are valid for the write.
        unsafe { (major.write(0), minor.write(0)) };
        Ok(())
    }

    fn hiprtcCreateProgram(
        made: *mut Handle, source: *const c_char, name: *const c_char, headers: c_int,
        texts: *const *const c_char, names: *const *const c_char,
    ) {
        // SAFETY: the caller promises NUL-terminated texts, in lists of that length.
        let source = unsafe {
            let header = |i: usize| (string(*names.add(i)), string(*texts.add(i)));
            let headers = (0..usize::try_from(headers).unwrap_or(0)).map(header);
            let headers = headers.filter(|(name, _)| is_of_source(name)).collect();
            Source { name: string(name), text: string(source), headers }
        };
        // SAFETY: the caller promises that it is valid for the write.
        unsafe { made.write(Handle(PROGRAMS.add(Program { source, compiled: Mutex::default() }))) };
        Ok(())
    }

    fn hiprtcDestroyProgram(handle: *mut Handle) {
        // SAFETY: the caller promises a program.
        let Handle(handle) = unsafe { *handle };
        PROGRAMS.remove(handle).map(drop).map_err(|_| RtcResult::INVALID_PROGRAM)
    }

    fn hiprtcCompileProgram(handle: Handle, options: c_int, texts: *const *const c_char) {
        let program = program(handle)?;
        // SAFETY: the caller promises NUL-terminated texts, in a list of that length.
        let options = (0..usize::try_from(options).unwrap_or(0)).map(|i| unsafe { string(*texts.add(i)) });
        let options: Vec<String> = options.collect();
        let has_architecture = options.contains(&format!("--offload-arch={}", devices::ARCHITECTURE));
        // The option is for older releases; with it, the headers would lack types here.
        let lacks_types = options.iter().any(|option| option == "-DMSCCLPP_HIPRTC_HAS_TYPES");
        if !has_architecture || lacks_types {
            return Err(RtcResult::INVALID_OPTION);
        }
        let mut compiled = program.compiled.lock();
        match program.source.load() {
            Ok(_module) => {
                compiled.code = Some(program.source.encode());
                Ok(())
            }
            Err(error) => {
                let log = match error {
                    Error::Compile { log, .. } => log,
                    other => other.to_string(),
                };
                compiled.log = CString::new(log.replace('\0', " ")).unwrap_or_default();
                Err(RtcResult::COMPILATION)
            }
        }
    }

    fn hiprtcGetCodeSize(handle: Handle, size: *mut usize) {
        let program = program(handle)?;
        let compiled = program.compiled.lock();
        let code = compiled.code.as_ref().ok_or(RtcResult::INVALID_PROGRAM)?;
        // SAFETY: the caller promises that it is valid for the write.
        unsafe { size.write(code.len()) };
        Ok(())
    }

    fn hiprtcGetCode(handle: Handle, to: *mut c_char) {
        let program = program(handle)?;
        let compiled = program.compiled.lock();
        let code = compiled.code.as_ref().ok_or(RtcResult::INVALID_PROGRAM)?;
        // SAFETY: the caller promises room for as many bytes as the size says.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        Ok(())
    }

    fn hiprtcGetProgramLogSize(handle: Handle, size: *mut usize) {
        let log = program(handle)?.compiled.lock().log.as_bytes_with_nul().len();
        // SAFETY: the caller promises that it is valid for the write.
        unsafe { size.write(log) };
        Ok(())
    }

    fn hiprtcGetProgramLog(handle: Handle, to: *mut c_char) {
        let program = program(handle)?;
        let compiled = program.compiled.lock();
        let log = compiled.log.as_bytes_with_nul();
        // SAFETY: the caller promises room for as many bytes as the size says.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(log.as_ptr(), log.len()) };
        Ok(())
    }
}
