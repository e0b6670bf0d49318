//! Checks Rust's values against those of a C compiler that reads the header.

use std::{
    fmt::Write as _,
    fs,
    mem::{align_of, offset_of, size_of},
    path::Path,
    process::{Command, Output},
};

use libtest_mimic::Failed;
use mscclpp_verbs_sys as rust;
use mscclpp_verbs_sys::verbs_context;

use super::structures::structures;

/// A number: the C expression for it, and its value in Rust.
pub(crate) struct Fact {
    expression: String,
    rust: i128,
}

impl Fact {
    fn new(expression: String, rust: usize) -> Self {
        Self { expression, rust: rust as i128 }
    }
}

macro_rules! facts {
    ($($kind:ident $name:ident { $($field:ident),* $(,)? } ($($anonymous:ident),*) [$($($path:ident).+),*];)*) => {
        vec![$(
            Fact::new(concat!("sizeof(", stringify!($kind $name), ")").to_owned(), size_of::<rust::$name>()),
            Fact::new(concat!("_Alignof(", stringify!($kind $name), ")").to_owned(), align_of::<rust::$name>()),
            $(offset(stringify!($kind $name), stringify!($field), offset_of!(rust::$name, $field)),)*
            $(offset(stringify!($kind $name), stringify!($($path).+), offset_of!(rust::$name, $($path).+)),)*
        )*]
    };
}

/// The offset of a field. Rust's `__bindgen_anon_1` and its like have no name in C, so the path in C skips them.
fn offset(structure: &str, path: &str, rust: usize) -> Fact {
    let parts: Vec<&str> =
        path.split('.').map(str::trim).filter(|part| !part.starts_with("__bindgen")).collect();
    Fact::new(format!("__builtin_offsetof({structure}, {})", parts.join(".")), rust)
}

/// The distances of the fields that are used or filled from the context behind them: the structure grows at its front.
fn extended_context() -> Vec<Fact> {
    let fact = |field: &str, rust| {
        let of = |field: &str| format!("__builtin_offsetof(struct verbs_context, {field})");
        Fact::new(format!("{} - {}", of("context"), of(field)), offset_of!(verbs_context, context) - rust)
    };
    vec![
        fact("query_port", offset_of!(verbs_context, query_port)),
        fact("create_cq_ex", offset_of!(verbs_context, create_cq_ex)),
        fact("priv", offset_of!(verbs_context, priv_)),
        fact("query_device_ex", offset_of!(verbs_context, query_device_ex)),
        fact("create_qp_ex", offset_of!(verbs_context, create_qp_ex)),
        fact("sz", offset_of!(verbs_context, sz)),
        Fact::new(
            "sizeof(struct verbs_context) - __builtin_offsetof(struct verbs_context, context)".to_owned(),
            size_of::<verbs_context>() - offset_of!(verbs_context, context),
        ),
    ]
}

pub(crate) fn structures() -> Vec<Fact> {
    let mut facts = structures!(facts);
    // The caller of `query_port` passes the structure's size. It may be smaller than C's: rdma-core 56 has appended a field.
    facts.retain(|fact| fact.expression != "sizeof(struct ibv_port_attr)");
    facts.push(Fact::new(
        format!("sizeof(struct ibv_port_attr) < {0} ? -1 : {0}", size_of::<rust::ibv_port_attr>()),
        size_of::<rust::ibv_port_attr>(),
    ));
    facts.extend(extended_context());
    facts
}

/// Every constant of the bindings.
pub(crate) fn constants() -> Vec<Fact> {
    let declared = include_str!("../../../src/bindings.rs").split("pub const ").skip(1);
    let mut facts: Vec<Fact> = declared
        .map(|text| {
            let (name, rest) = text.split_once(':').expect("a constant has a type");
            let (_, value) = rest.split_once('=').expect("a constant has a value");
            let (value, _) = value.split_once(';').expect("a constant ends");
            Fact { expression: name.to_owned(), rust: value.trim().parse().expect("a number") }
        })
        .collect();
    let by_macro = [
        ("IBV_QPF_GRH_REQUIRED", i128::from(rust::IBV_QPF_GRH_REQUIRED)),
        ("IBV_ACCESS_OPTIONAL_RANGE", i128::from(rust::IBV_ACCESS_OPTIONAL_RANGE)),
    ];
    facts.extend(by_macro.map(|(name, rust)| Fact { expression: name.to_owned(), rust }));
    facts
}

/// A C compiler that finds the header.
#[derive(Clone)]
pub(crate) struct Compiler {
    tool: cc::Tool,
}

impl Compiler {
    pub(crate) fn find() -> Result<Self, &'static str> {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let tool = cc::Build::new()
            .cargo_metadata(false)
            .target(&target)
            .host(&target)
            .opt_level(0)
            .try_get_compiler()
            .map_err(|_| "no C compiler; set CC")?;
        let found = Self { tool };
        match found.compile(
            "#if !__has_include(<infiniband/verbs.h>)\n#error\n#endif\nint main(void) { return 0; }\n",
        ) {
            Ok((output, _)) if output.status.success() => Ok(found),
            Ok(_) => Err("no infiniband/verbs.h; install libibverbs-dev or rdma-core-devel"),
            Err(_) => Err("no C compiler; set CC"),
        }
    }

    pub(crate) fn compare(&self, facts: &[Fact]) -> Result<(), Failed> {
        assert!(facts.len() > 100, "the facts are listed");
        let mut text = "#include <infiniband/verbs.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
        for fact in facts {
            let _ = writeln!(text, "  printf(\"%lld\\n\", (long long)({}));", fact.expression);
        }
        text += "  return 0;\n}\n";
        let (compiled, program) = self.compile(&text)?;
        if !compiled.status.success() {
            let words = String::from_utf8_lossy(&compiled.stderr);
            return Err(format!("what Rust knows, the header does not:\n{words}").into());
        }
        let printed = String::from_utf8(Command::new(program.path().join("probe")).output()?.stdout)?;
        let numbers = printed.lines().map(str::parse).collect::<Result<Vec<i128>, _>>()?;
        assert_eq!(numbers.len(), facts.len(), "one number for each fact");
        let differences: Vec<String> = facts
            .iter()
            .zip(numbers)
            .filter(|(fact, c)| fact.rust != *c)
            .map(|(fact, c)| format!("{}: {} in Rust, {c} in C", fact.expression, fact.rust))
            .collect();
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n").into()) }
    }

    /// Compiles a program to `probe` in a folder that is removed when the returned handle is dropped.
    fn compile(&self, text: &str) -> std::io::Result<(Output, tempfile::TempDir)> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("probe.c");
        fs::write(&source, text)?;
        let output = self.command(&source, &folder.path().join("probe")).output()?;
        Ok((output, folder))
    }

    fn command(&self, source: &Path, program: &Path) -> Command {
        let mut command = self.tool.to_command();
        command.arg(source).arg("-o").arg(program);
        command
    }
}
