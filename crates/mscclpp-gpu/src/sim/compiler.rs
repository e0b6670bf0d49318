//! Compiles a kernel's CUDA source for the CPU, with the machine's C++ compiler.

use std::{
    ffi::{CStr, OsStr, OsString},
    fs,
    path::{Component, Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use super::{
    folder::Folder,
    initialisers, races,
    rewrite::{DYNAMIC_SHARED, Rewritten, rewrite},
};
use crate::{Error, KernelSource, Result, cache, env};

/// The most shared memory of a block, static and dynamic: as much as the largest of today's GPUs.
pub(super) const SHARED_BYTES: u32 = 227 << 10;

/// The options that change the result, besides the source, the headers and the compiler.
const OPTIONS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    // Device code reads memory as any type, and its integers wrap.
    "-fno-strict-aliasing",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-exceptions",
    // Warnings about a kernel are for compilers for GPUs.
    "-w",
    // Each load has variables of its own, those of inline functions included.
    GNU_UNIQUE,
];
const GNU_UNIQUE: &str = "-fno-gnu-unique";
/// The options of linking, without start files, whose functions would run when the library is loaded.
const LINK: [&str; 5] = ["-shared", "-nostartfiles", "-Wl,-Bsymbolic", "-Wl,--as-needed", "-Wl,-z,now"];
/// The parts of libraries that are made of headers alone.
const RUNTIME: [&str; 2] = ["trace.o", "races.o"];
/// The property of every library in the cache: `initialisers` has checked it.
const CHECKED: &str = "runs nothing when loaded";
/// The option that adds a call at each branch, at which threads take turns (runtime.hpp).
const TRACE: &str = "-fsanitize-coverage=trace-pc";

/// The options for the race detector: a call at each access (races.cpp), and the lines of the source.
const RACES: [&str; 4] = ["-fsanitize=thread", "-g1", "-gz=none", DEFINED];
/// The definition that tells the headers of the race detector.
const DEFINED: &str = "-DMSCCLPP_SIM_RACES";
/// The options that distinguish volatile accesses, for each compiler.
const VOLATILE: [&[&str]; 2] =
    [&["--param=tsan-distinguish-volatile=1"], &["-mllvm", "-tsan-distinguish-volatile=1"]];

/// A C++ compiler that runs.
struct Compiler {
    program: OsString,
    version: String,
    is_clang: bool,
}

/// Returns the compiled library of `source`: that in the cache, made here or elsewhere, for which no compiler is looked
/// for; else the result of the compiler.
///
/// The names of entries do not contain the compiler, as only it could name its version. They contain all that can keep a
/// library from being loaded: the processor, and for libraries that were made here the version of the C library.
pub(super) fn compile(source: &KernelSource<'_>) -> Result<Vec<u8>> {
    let made_from = made_from(source);
    let own = cache::Entry::new(source.name(), "so", &["sim", &c_library(), &made_from]);
    for entry in [&own, &from_elsewhere(source, &made_from)] {
        if let Some(library) = cache::find(entry)? {
            return Ok(library);
        }
    }
    cache::get_or_make(&own, || build(compiler()?, source))
}

/// Compiles `source` for simulated devices and puts the result into a cache of compiled kernels. Where it is used,
/// `MSCCLPP_CACHE_DIR` names that folder; [`Module::load`](crate::Module::load) then finds the result and needs no C++
/// compiler. The other machine needs the same kind of processor and a C library at least as new as the one here. Returns
/// the file's path. Blocks for some seconds while it compiles, unless the result is in this machine's cache.
///
/// # Errors
/// [`Error::Compile`], [`Error::NoCompiler`]; [`Error::Cache`] if others may write to the folder; [`Error::System`].
pub fn store_for_sim(folder: &Path, source: &KernelSource<'_>) -> Result<PathBuf> {
    cache::store(folder, &from_elsewhere(source, &made_from(source)), &compile(source)?)
}

fn from_elsewhere(source: &KernelSource<'_>, made_from: &str) -> cache::Entry {
    cache::Entry::new(source.name(), "so", &["sim beforehand", made_from])
}

/// Returns a text of all that a library depends on, wherever it is made.
fn made_from(source: &KernelSource<'_>) -> String {
    let mut parts = vec![std::env::consts::ARCH, CHECKED, TRACE, source.cuda()];
    parts.extend(OPTIONS);
    parts.extend(LINK);
    if races::is_on() {
        parts.extend(RACES);
    }
    parts.extend(headers(source).flat_map(<[&str; 2]>::from));
    cache::digest(&parts)
}

#[cfg(target_env = "gnu")]
fn c_library() -> String {
    // SAFETY: it gives a static text.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned()
}

#[cfg(not(target_env = "gnu"))]
fn c_library() -> String {
    String::new()
}

fn headers<'a>(source: &KernelSource<'a>) -> impl Iterator<Item = (&'a str, &'a str)> {
    let library = mscclpp_kernels::HEADERS.iter().chain(mscclpp_kernels::SIM_HEADERS);
    library.chain(source.headers()).copied()
}

/// Returns the C++ compiler that compiles kernels for [`Platform::Sim`](crate::Platform::Sim), and the first line that
/// it prints about its version. The first call looks for it, by running programs.
///
/// # Errors
/// [`Error::NoCompiler`], which lists what was tried.
pub fn sim_compiler() -> Result<String> {
    let compiler = compiler()?;
    let version = compiler.version.lines().next().unwrap_or("no version");
    Ok(format!("{}: {version}", compiler.program.display()))
}

/// The first of `MSCCLPP_CXX`, `CXX`, `c++`, `g++`, `clang++` that runs; looked for once.
fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<Result<Compiler>> = OnceLock::new();
    COMPILER.get_or_init(find_compiler).as_ref().map_err(Clone::clone)
}

fn find_compiler() -> Result<Compiler> {
    let mut tried = Vec::new();
    for program in env::cxx_compilers() {
        match Command::new(&program).arg("--version").output() {
            Ok(output) if output.status.success() => {
                let version = String::from_utf8_lossy(&output.stdout).into_owned();
                let is_clang = version.contains("clang");
                tracing::debug!(
                    target: "mscclpp::gpu", ?program, version = version.lines().next(), "found a C++ compiler"
                );
                return Ok(Compiler { program, version, is_clang });
            }
            Ok(output) => tried.push(format!("{}: {}", program.display(), output.status)),
            Err(error) => tried.push(format!("{}: {error}", program.display())),
        }
    }
    Err(Error::NoCompiler { tried: tried.join("; ") })
}

/// Compiles in a folder of its own, which is removed afterwards.
fn build(compiler: &Compiler, source: &KernelSource<'_>) -> Result<Vec<u8>> {
    let folder = Folder::new()?;
    // A name such as `../common.hpp` leads into a folder above, of which there are enough within this one.
    let above =
        headers(source).map(|(name, _)| folders_above(name)).try_fold(0, |all, n| n.map(|n| all.max(n)))?;
    let folder = folder.path().join("folder/".repeat(above + 1));
    let folder = folder.as_path();
    for (name, text) in headers(source) {
        write(&folder.join("include").join(name), text)?;
    }
    // The name that messages show, unless the compiler would take it for something else.
    let file = Path::new(source.name()).file_name().unwrap_or_default();
    let is_plain = !file.is_empty()
        && !file.as_encoded_bytes().starts_with(b"-")
        && !file.as_encoded_bytes().starts_with(b"@");
    let file = if is_plain { file } else { OsStr::new("kernel.cu") };
    // A compiler quotes the lines of the file that it names. They are those behind a marker, if other text comes before it.
    let marker = format!("#line 1 \"{}\"\n", file.display());
    let main = match source.cuda().split_once(&marker) {
        Some((_, quoted)) => {
            write(&folder.join(file), quoted)?;
            OsStr::new("unit.cu")
        }
        None => file,
    };
    write(&folder.join(main), source.cuda())?;

    let run = |arguments: &[&OsStr]| compiler.run(folder, source.name(), arguments);
    let mut preprocess =
        vec!["-E", "-x", "c++", "-std=c++17", "-include", "mscclpp_sim/runtime.hpp", "-I", "include"];
    if races::is_on() {
        preprocess.push(DEFINED);
    }
    let preprocess: Vec<&OsStr> = preprocess.iter().map(OsStr::new).collect();
    let preprocessed = run(&[&preprocess[..], &[main]].concat())?;
    let preprocessed = String::from_utf8_lossy(&preprocessed.stdout);
    let rewritten = rewrite(&preprocessed, "include/")
        .map_err(|log| Error::Compile { name: source.name().to_owned(), log })?;
    write(&folder.join("unit.cpp"), unit(&rewritten))?;

    let options =
        OPTIONS.iter().filter(|option| !(compiler.is_clang && **option == GNU_UNIQUE)).map(OsStr::new);
    let options: Vec<_> = options.collect();
    let mut unit: Vec<&OsStr> = ["-c", "unit.cpp", "-o", "unit.o", TRACE].map(OsStr::new).into();
    let mut link = vec!["trace.o", "unit.o", "-o", "kernels.so"];
    // The lines in debug information are those of files by the names that their texts have.
    let names = format!("-fdebug-prefix-map={}=.", folder.display().to_string().trim_end_matches('/'));
    if races::is_on() {
        unit.extend(RACES.map(OsStr::new));
        unit.extend(VOLATILE[usize::from(compiler.is_clang)].iter().map(OsStr::new));
        unit.push(OsStr::new(&names));
        link.push("races.o");
    }
    run(&[&options[..], &unit[..]].concat())?;
    let refused = |log| Error::Compile { name: source.name().to_owned(), log };
    let mut object = read(&folder.join("unit.o"))?;
    if races::is_on() {
        initialisers::drop_sanitizers(&mut object).map_err(refused)?;
        write(&folder.join("unit.o"), &object)?;
    }
    initialisers::refuse(&object).map_err(refused)?;
    for object in link.iter().filter(|name| RUNTIME.contains(name)) {
        write(&folder.join(object), runtime(compiler, source, folder, object, &options)?)?;
    }
    let link: Vec<&OsStr> = link.iter().map(OsStr::new).collect();
    run(&[&options[..], &link, &LINK.map(OsStr::new)].concat())?;
    let library = read(&folder.join("kernels.so"))?;
    // This is checked again for other code that was linked: a header of the user's may have replaced one of these.
    initialisers::refuse(&library).map_err(refused)?;
    Ok(library)
}

/// Returns a part of libraries that has no kernel in it, so it is compiled once for all sources with the same headers.
fn runtime(
    compiler: &Compiler,
    source: &KernelSource<'_>,
    folder: &Path,
    object: &str,
    options: &[&OsStr],
) -> Result<Vec<u8>> {
    let part = object.trim_end_matches(".o");
    let c_library = c_library();
    let mut made_from = vec![std::env::consts::ARCH, &c_library, &compiler.version];
    made_from.extend(OPTIONS);
    made_from.extend(headers(source).flat_map(<[&str; 2]>::from));
    cache::get_or_make(&cache::Entry::new(part, "o", &made_from), || {
        let file = format!("include/mscclpp_sim/{part}.cpp");
        let compile = ["-I", "include", "-c", &file, "-o", object].map(OsStr::new);
        compiler.run(folder, source.name(), &[options, &compile].concat())?;
        read(&folder.join(object))
    })
}

/// Returns how many folders a header's name leads up from the folder of the headers.
fn folders_above(name: &str) -> Result<usize> {
    let refused = |why: &str| Err(Error::invalid(format!("{name:?} cannot be the name of a header: {why}")));
    let (mut depth, mut above) = (0isize, 0);
    for component in Path::new(name).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth -= 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => {
                return refused("it must be a path relative to where headers are");
            }
        }
        above = above.max(-depth);
    }
    match Path::new(name).file_name() {
        Some(_) if !name.contains('\0') => Ok(above.unsigned_abs()),
        _ => refused("it is no file's name"),
    }
}

impl Compiler {
    fn run(&self, folder: &Path, name: &str, arguments: &[&OsStr]) -> Result<Output> {
        let output = Command::new(&self.program)
            .current_dir(folder)
            .args(arguments)
            .output()
            .map_err(|e| Error::system(format!("running {}", self.program.display()), e))?;
        if output.status.success() {
            return Ok(output);
        }
        let log = format!(
            "{} says:\n{}",
            self.program.display(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Err(Error::Compile { name: name.to_owned(), log })
    }
}

/// Returns the text to compile: the declarations that the kernels need, the kernels, and their table.
fn unit(rewritten: &Rewritten) -> String {
    let mut text = rewritten.text.clone();
    text += "\n# 1 \"<table of kernels>\"\n";
    if text.contains(&format!("__asm__(\"{DYNAMIC_SHARED}\")")) {
        text += &format!(
            "extern \"C\" {{ __attribute__((visibility(\"hidden\"))) \
             __thread __attribute__((aligned(1024))) char {DYNAMIC_SHARED}[{SHARED_BYTES}]; }}\n"
        );
    }
    text += "extern \"C\" __attribute__((used, visibility(\"default\"))) \
             const mscclpp_sim::Kernel mscclpp_sim_table[] = {\n";
    for kernel in &rewritten.kernels {
        text += &format!("  mscclpp_sim::Entry<&{}>::kernel(\"{}\"),\n", kernel.qualified, kernel.name);
    }
    text += "  {nullptr, nullptr, 0, nullptr},\n};\n";
    text
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::system(format!("reading {}", path.display()), e))
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    let failed = |e| Error::system(format!("writing {}", path.display()), e);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}
