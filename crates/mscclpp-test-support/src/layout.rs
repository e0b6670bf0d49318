//! Compares a layout in Rust with that of a C++ compiler, given the embedded headers (`mscclpp_kernels::HEADERS`).

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs,
    mem::{align_of, size_of},
    process::Command,
    sync::OnceLock,
};

use libtest_mimic::{Arguments, Failed, Trial};

/// Headers by name, each with its text.
pub type Headers = &'static [(&'static str, &'static str)];

/// A number of the layout: its name, the C++ expression for it, and its value in Rust.
pub struct Fact {
    name: &'static str,
    expression: String,
    rust: usize,
}

/// Makes a number of the layout from its name, the C++ expression, and its value in Rust.
pub fn fact(name: &'static str, expression: impl Into<String>, rust: usize) -> Fact {
    Fact { name, expression: expression.into(), rust }
}

/// Returns the size and the alignment of a type, which C++ calls `cpp`.
pub fn sizes<T>(cpp: &str) -> [Fact; 2] {
    [
        fact("size", format!("sizeof(mscclpp::{cpp})"), size_of::<T>()),
        fact("alignment", format!("alignof(mscclpp::{cpp})"), align_of::<T>()),
    ]
}

/// Returns the offset of a member of the type that C++ calls `cpp`.
pub fn offset(cpp: &str, member: &'static str, rust: usize) -> Fact {
    fact(member, format!("__builtin_offsetof(mscclpp::{cpp}, {member})"), rust)
}

/// Returns the size and the alignment of each type, with the name that C++ has for it, and the offsets of the members that
/// follow, each with its name in C++ and in Rust.
#[macro_export]
macro_rules! layouts {
    ($($type:ty, $cpp:literal: $($theirs:literal $($ours:ident).+),*;)*) => {{
        let mut facts = Vec::new();
        $(
            facts.extend($crate::layout::sizes::<$type>($cpp));
            facts.extend([
                $($crate::layout::offset($cpp, $theirs, ::std::mem::offset_of!($type, $($ours).+))),*
            ]);
        )*
        facts
    }};
}

/// Returns a program that prints each fact's number on a line of its own.
fn program(header: &str, facts: &[Fact]) -> String {
    let mut text = format!("#include <cstdio>\n#include \"mscclpp/{header}\"\nint main() {{\n");
    for fact in facts {
        let _ = writeln!(
            text,
            "  std::printf(\"%zu\\n\", static_cast<decltype(sizeof(0))>({}));",
            fact.expression
        );
    }
    text + "}\n"
}

/// Returns `CXX`, or a usual name of a C++ compiler; `None` if none of them runs.
fn compiler() -> Option<&'static OsStr> {
    static COMPILER: OnceLock<Option<OsString>> = OnceLock::new();
    let runs = |name: &OsString| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let names = || env::var_os("CXX").into_iter().chain(["c++", "g++", "clang++"].map(OsString::from));
    COMPILER.get_or_init(|| names().find(runs)).as_deref()
}

/// Returns a trial whose test gets a C++ compiler. It is ignored if there is none.
pub fn with_compiler(
    name: impl Into<String>,
    test: impl FnOnce(&OsStr) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    match compiler() {
        Some(compiler) => Trial::test(name, move || test(compiler)),
        None => Trial::test(name, || Err("there is no C++ compiler; set CXX".into()))
            .with_kind("no C++ compiler")
            .with_ignored_flag(true),
    }
}

fn compare(compiler: &OsStr, headers: Headers, header: &str, facts: &[Fact]) -> Result<(), Failed> {
    let scratch = tempfile::tempdir()?;
    for (name, text) in headers {
        let path = scratch.path().join(name);
        fs::create_dir_all(path.parent().unwrap_or(scratch.path()))?;
        fs::write(path, text)?;
    }
    let (source, binary) = (scratch.path().join("layout.cpp"), scratch.path().join("layout"));
    fs::write(&source, program(header, facts))?;
    let compiled = Command::new(compiler)
        // Handles derive from each other, and every existing compiler knows the offsets in such a struct.
        .args(["-std=c++17", "-Wall", "-Werror", "-Wno-invalid-offsetof", "-I"])
        .args([scratch.path(), &source])
        .arg("-o")
        .arg(&binary)
        .output()?;
    if !compiled.status.success() {
        return Err(
            format!("the headers do not compile:\n{}", String::from_utf8_lossy(&compiled.stderr)).into()
        );
    }
    let printed = String::from_utf8(Command::new(&binary).output()?.stdout)?;
    let numbers = printed.lines().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    assert_eq!(numbers.len(), facts.len(), "one number for each fact");
    for (fact, cpp) in facts.iter().zip(numbers) {
        assert_eq!(fact.rust, cpp, "{} of {}: Rust says the left, C++ the right", fact.name, fact.expression);
    }
    Ok(())
}

/// A header, and the facts about its declarations.
pub type OfHeader = (&'static str, fn() -> Vec<Fact>);

/// The `main` of a test that compares facts with the declarations of headers, of which each has a trial. It is ignored if
/// there is no C++ compiler.
pub fn main(headers: Headers, of: &[OfHeader]) {
    let trial = |(header, facts): &OfHeader| {
        let (header, facts) = (*header, *facts);
        let name = format!("handles_are_laid_out_as_in_{}", header.trim_end_matches(".hpp"));
        with_compiler(name, move |compiler| compare(compiler, headers, header, &facts()))
    };
    libtest_mimic::run(&Arguments::from_args(), of.iter().map(trial).collect()).exit();
}
