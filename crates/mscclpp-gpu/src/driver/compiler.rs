//! Compiles device code at run time. NVRTC and hiprtc have the same functions, under their own names.

use std::ffi::{CString, c_char, c_int};

use mscclpp_gpu_sys::Program;

use super::entries::Entry;
use crate::{Error, Result};

/// A library that compiles.
pub(crate) trait Compiler {
    type Code: Copy + Eq;
    const SUCCESS: Self::Code;
    /// For a program or an option that is wrong.
    const REFUSED: [Self::Code; 2];

    fn functions(&self) -> Functions<Self::Code>;
    /// What a result says, with its number.
    fn words(&self, result: Self::Code) -> String;
}

type Texts = *const *const c_char;

/// Of something that a program has: one function tells how many bytes it is, and another writes them.
pub(crate) type Pair<C> = (
    Entry<unsafe extern "C" fn(Program, *mut usize) -> C>,
    Entry<unsafe extern "C" fn(Program, *mut c_char) -> C>,
);

/// What the library has for a program.
pub(crate) struct Functions<C> {
    pub(crate) create:
        Entry<unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts) -> C>,
    pub(crate) compile: Entry<unsafe extern "C" fn(Program, c_int, Texts) -> C>,
    pub(crate) code: Pair<C>,
    pub(crate) log: Pair<C>,
    pub(crate) destroy: Entry<unsafe extern "C" fn(*mut Program) -> C>,
}

/// Implements [`Compiler`] for a library whose functions' names begin with `$prefix`. `$get` is the function that writes the
/// code, and `$words` what says a result in words.
macro_rules! compiler {
    ($library:ty: $code:ty, $prefix:literal, $get:literal = ($size:ident, $write:ident), $words:expr) => {
        impl $crate::driver::compiler::Compiler for $library {
            type Code = $code;
            const SUCCESS: $code = <$code>::SUCCESS;
            const REFUSED: [$code; 2] = [<$code>::COMPILATION, <$code>::INVALID_OPTION];

            fn functions(&self) -> $crate::driver::compiler::Functions<$code> {
                use $crate::driver::entries::Entry;

                $crate::driver::compiler::Functions {
                    create: Entry(concat!($prefix, "CreateProgram"), self.create_program),
                    compile: Entry(concat!($prefix, "CompileProgram"), self.compile_program),
                    code: (
                        Entry(concat!($prefix, $get, "Size"), self.$size),
                        Entry(concat!($prefix, $get), self.$write),
                    ),
                    log: (
                        Entry(concat!($prefix, "GetProgramLogSize"), self.get_program_log_size),
                        Entry(concat!($prefix, "GetProgramLog"), self.get_program_log),
                    ),
                    destroy: Entry(concat!($prefix, "DestroyProgram"), self.destroy_program),
                }
            }

            fn words(&self, result: $code) -> String {
                let words: Option<std::borrow::Cow<'_, str>> = $words(self, result);
                format!("{} ({})", words.as_deref().unwrap_or("unknown"), result.0)
            }
        }
    };
}
pub(crate) use compiler;

/// What the library makes of `source`, whose name is for messages. `headers` are pairs of the name in `#include` and the
/// text.
pub(crate) fn compile<L: Compiler>(
    library: &L,
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
    let functions = library.functions();
    let Entry(operation, create) = functions.create;
    let (source, c_name, names, texts) = (source.as_ptr(), c_name.as_ptr(), names.as_ptr(), texts.as_ptr());
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: `program` is valid for the write; all texts are NUL-terminated and live, and both lists have that length.
    let result = unsafe { create(&raw mut program, source, c_name, header_count, texts, names) };
    check(library, result, operation)?;
    let program = Compilation { library, functions, program };
    let Entry(operation, compile) = program.functions.compile;
    // SAFETY: the program lives; the options are NUL-terminated, live and that many.
    let result = unsafe { compile(program.program, option_count, options.as_ptr()) };
    if L::REFUSED.contains(&result) {
        let log = text(program.bytes(program.functions.log)?);
        return Err(Error::Compile { name: name.to_owned(), log });
    }
    check(library, result, operation)?;
    program.bytes(program.functions.code)
}

/// What stands before the NUL.
pub(crate) fn text(mut bytes: Vec<u8>) -> String {
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A program, destroyed when dropped.
struct Compilation<'a, L: Compiler> {
    library: &'a L,
    functions: Functions<L::Code>,
    program: Program,
}

impl<L: Compiler> Compilation<'_, L> {
    fn bytes(&self, of: Pair<L::Code>) -> Result<Vec<u8>> {
        let (Entry(of_size, size_of), Entry(operation, write)) = of;
        let mut size = 0;
        // SAFETY: the program lives; `size` is valid for the write.
        check(self.library, unsafe { size_of(self.program, &raw mut size) }, of_size)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the program lives; the buffer has as many bytes as will be written, as the pair belongs together.
        check(self.library, unsafe { write(self.program, bytes.as_mut_ptr().cast()) }, operation)?;
        Ok(bytes)
    }
}

impl<L: Compiler> Drop for Compilation<'_, L> {
    fn drop(&mut self) {
        let Entry(operation, destroy) = self.functions.destroy;
        // SAFETY: made once, destroyed once.
        let result = unsafe { destroy(&raw mut self.program) };
        if let Err(error) = check(self.library, result, operation) {
            tracing::warn!(target: "mscclpp::gpu", "{error}");
        }
    }
}

pub(crate) fn check<L: Compiler>(library: &L, result: L::Code, operation: &str) -> Result<()> {
    if result == L::SUCCESS { Ok(()) } else { Err(Error::system(operation, library.words(result))) }
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
