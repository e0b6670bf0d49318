//! Turns preprocessed CUDA C++ into C++: replaces the words that only a CUDA compiler knows, and lists the kernels.
//!
//! The input is the output of the C++ compiler's preprocessor for a kernel's source. So there are no macros left, and
//! markers say which line of which file each line is. Text of the system's own headers is left as it is.

use std::fmt::Write;

use crate::tokens::{Kind, Token, tokens};

/// The result of rewriting a source.
pub(super) struct Rewritten {
    /// The C++ text.
    pub(super) text: String,
    /// The kernels, by the names under which they are launched and found from outside of all namespaces.
    pub(super) kernels: Vec<KernelName>,
}

/// A kernel of a source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelName {
    pub(super) name: String,
    pub(super) qualified: String,
}

/// The thread-local memory of all `extern __shared__` arrays of a source.
pub(super) const DYNAMIC_SHARED: &str = "mscclpp_sim_dynamic_shared";

/// Rewrites `source`. Files whose path begins with `headers` are the library's own.
///
/// # Errors
/// The text names the feature that a CPU does not have, with file and line.
pub(super) fn rewrite(source: &str, headers: &str) -> Result<Rewritten, String> {
    let mut rewriter = Rewriter { tokens: tokens(source), headers, ..Rewriter::default() };
    rewriter.run()?;
    Ok(Rewritten { text: rewriter.text, kernels: rewriter.kernels })
}

#[derive(Default)]
struct Rewriter<'a> {
    tokens: Vec<Token<'a>>,
    headers: &'a str,
    text: String,
    kernels: Vec<KernelName>,
    file: String,
    line: usize,
    is_system: bool,
    /// The kinds of the braces around the current place.
    scopes: Vec<Scope>,
    /// The words and signs since the statement began.
    statement: Vec<&'a str>,
    /// Whether the statement declares an `extern __shared__` array.
    dynamic_shared: bool,
    /// Whether the statement declares something `__shared__`.
    shared: bool,
}

enum Scope {
    Namespace(String),
    ExternC,
    Other,
}

/// The number of words that are kept of a statement's beginning.
const STATEMENT: usize = 32;

impl<'a> Rewriter<'a> {
    fn run(&mut self) -> Result<(), String> {
        let mut at = 0;
        while at < self.tokens.len() {
            let token = self.tokens[at];
            at = match token.kind {
                Kind::Directive => {
                    self.directive(token.text);
                    at + 1
                }
                Kind::Space => {
                    self.keep(token.text);
                    at + 1
                }
                Kind::Word if !self.is_system => self.word(at)?,
                Kind::Word => self.keep_in_statement(at),
                Kind::Other => self.sign(at),
            };
        }
        Ok(())
    }

    fn keep(&mut self, text: &str) {
        self.line += text.matches('\n').count();
        self.text.push_str(text);
    }

    fn keep_in_statement(&mut self, at: usize) -> usize {
        let text = self.tokens[at].text;
        self.note(text);
        self.keep(text);
        at + 1
    }

    fn note(&mut self, text: &'a str) {
        if self.statement.len() < STATEMENT {
            self.statement.push(text);
        }
    }

    /// Reads a directive. A marker is `# LINE "FILE" FLAGS`, where flag 3 means a header of the system.
    fn directive(&mut self, text: &str) {
        let mut words = text.trim_start_matches('#').trim().trim_start_matches("line ").split('"');
        if let (Some(line), Some(file)) = (words.next(), words.next())
            && let Ok(line) = line.trim().parse::<usize>()
        {
            file.clone_into(&mut self.file);
            self.is_system =
                words.next().is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "3"));
            // The line is that of the text after the marker's own line end.
            self.line = line.saturating_sub(1);
        }
        self.text.push_str(text);
    }

    fn word(&mut self, at: usize) -> Result<usize, String> {
        let token = self.tokens[at];
        match token.text {
            "__device__" | "__host__" | "__constant__" | "__grid_constant__" => Ok(at + 1),
            "__global__" => {
                self.kernel(at);
                Ok(at + 1)
            }
            "__launch_bounds__" | "__maxnreg__" | "__cluster_dims__" => Ok(self.skip_parentheses(at + 1)),
            "__forceinline__" => {
                self.text.push_str("inline __attribute__((always_inline))");
                Ok(at + 1)
            }
            // This is the word itself, and not the one in `__attribute__((__noinline__))`.
            "__noinline__" if !matches!(self.statement.last(), Some(&"(" | &",")) => {
                self.text.push_str("__attribute__((noinline))");
                Ok(at + 1)
            }
            "__align__" => Ok(self.aligned(at)),
            "alignas" if self.shared => Ok(self.aligned(at)),
            "__shared__" => {
                self.shared = true;
                self.note(token.text);
                self.dynamic_shared = self.statement.contains(&"extern") && !self.statement.contains(&"{");
                self.text.push_str(match (self.dynamic_shared, self.statement.contains(&"static")) {
                    (true, _) => "__thread",
                    (false, true) => "thread_local",
                    (false, false) => "static thread_local",
                });
                Ok(at + 1)
            }
            "asm" | "__asm__" | "__asm" if !self.file.starts_with(self.headers) => Err(format!(
                "{}:{}: inline assembly of a GPU (`{}`) cannot run on the simulated platform; put it between \
                 `#if !defined(MSCCLPP_DEVICE_SIM)` and `#endif`, with C++ that does the same behind `#else`",
                self.file, self.line, token.text
            )),
            _ => Ok(self.keep_in_statement(at)),
        }
    }

    fn sign(&mut self, at: usize) -> usize {
        match self.tokens[at].text {
            "{" => {
                let scope = self.scope();
                self.scopes.push(scope);
                self.end_statement();
                self.keep("{");
            }
            "}" => {
                self.scopes.pop();
                self.end_statement();
                self.keep("}");
            }
            ";" => {
                if self.dynamic_shared {
                    let _ = write!(self.text, " __asm__(\"{DYNAMIC_SHARED}\")");
                }
                self.end_statement();
                self.keep(";");
            }
            _ => return self.keep_in_statement(at),
        }
        at + 1
    }

    fn end_statement(&mut self) {
        self.statement.clear();
        self.dynamic_shared = false;
        self.shared = false;
    }

    /// Returns the kind of the scope that the brace after the statement opens.
    fn scope(&self) -> Scope {
        let words = &self.statement;
        match words.iter().position(|word| *word == "namespace") {
            Some(at) => {
                let name: String = words[at + 1..]
                    .iter()
                    .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == ':'))
                    .copied()
                    .collect();
                Scope::Namespace(name)
            }
            None if words.as_slice() == ["extern", "\"C\""] => Scope::ExternC,
            None => Scope::Other,
        }
    }

    /// Notes the kernel that the `__global__` at `at` begins, if it can be launched by its name.
    fn kernel(&mut self, at: usize) {
        let in_extern_c = self.scopes.iter().any(|scope| matches!(scope, Scope::ExternC))
            || self.statement.windows(2).any(|words| words == ["extern", "\"C\""]);
        let outside = !self.scopes.iter().any(|scope| matches!(scope, Scope::Other));
        if !in_extern_c || !outside || self.statement.contains(&"template") {
            return;
        }
        let Some(name) = self.function_name(at + 1) else { return };
        let mut qualified = String::new();
        for scope in &self.scopes {
            if let Scope::Namespace(space) = scope
                && !space.is_empty()
            {
                qualified += &format!("::{space}");
            }
        }
        qualified += &format!("::{name}");
        if !self.kernels.iter().any(|kernel| kernel.name == name) {
            self.kernels.push(KernelName { name: name.to_owned(), qualified });
        }
    }

    /// Returns the next word before parentheses that are not those of an attribute.
    fn function_name(&self, mut at: usize) -> Option<&'a str> {
        const ATTRIBUTES: [&str; 6] =
            ["__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__attribute__", "__align__", "alignas"];
        let mut last = None;
        while at < self.tokens.len() {
            let token = self.tokens[at];
            match (token.kind, token.text) {
                (Kind::Word, text) if ATTRIBUTES.contains(&text) => {
                    at = self.after_parentheses(at + 1);
                    continue;
                }
                (Kind::Word, text) => last = Some(text),
                (Kind::Other, "(") => return last,
                (Kind::Other, ";" | "{" | "}") => return None,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Turns `__align__(N)` into an attribute that may stand anywhere in a declaration.
    fn aligned(&mut self, at: usize) -> usize {
        let end = self.after_parentheses(at + 1);
        self.text.push_str("__attribute__((aligned");
        for i in at + 1..end {
            self.keep(self.tokens[i].text);
        }
        self.text.push_str("))");
        end
    }

    /// Drops the text between the parentheses that follow, except line ends.
    fn skip_parentheses(&mut self, at: usize) -> usize {
        let end = self.after_parentheses(at);
        for i in at..end {
            let lines = self.tokens[i].text.matches('\n').count();
            self.keep(&"\n".repeat(lines));
        }
        end
    }

    /// Returns the end of the parentheses that begin at the next token.
    fn after_parentheses(&self, mut at: usize) -> usize {
        let mut depth = 0usize;
        while at < self.tokens.len() {
            match self.tokens[at].text {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
            let is_space = matches!(self.tokens[at].kind, Kind::Space | Kind::Directive);
            at += 1;
            if depth == 0 && !is_space {
                break;
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(source: &str) -> Rewritten {
        rewrite(source, "/headers/").expect("it can be rewritten")
    }

    #[test]
    fn kernels_are_found_by_name() {
        let source = r#"
            extern "C" __global__ void plain(int* p) { *p = 1; }
            extern "C" __global__ void __launch_bounds__(1024, 1)
                bounded(float x) {}
            namespace a { namespace b { extern "C" __global__ void inner() {} } }
            extern "C" { __global__ void listed(); __global__ void listed() { if (1) {} } }
            __global__ void mangled() {}
            template <class T> __global__ void generic(T) {}
        "#;
        let names: Vec<_> =
            rewritten(source).kernels.iter().map(|k| format!("{} {}", k.name, k.qualified)).collect();
        assert_eq!(names, ["plain ::plain", "bounded ::bounded", "inner ::a::b::inner", "listed ::listed"]);
    }

    #[test]
    fn shared_variables_become_thread_local() {
        let text = rewritten(
            "__shared__ int a[4]; static __shared__ int b; extern __shared__ __align__(16) char c[];\n\
             void f() { extern volatile __shared__ alignas(8) int d[]; }",
        )
        .text;
        assert!(text.contains("static thread_local int a[4];"), "{text}");
        assert!(text.contains("static thread_local int b;"), "{text}");
        let dynamic = format!("__asm__(\"{DYNAMIC_SHARED}\");");
        assert!(
            text.contains(&format!("extern __thread __attribute__((aligned(16))) char c[] {dynamic}")),
            "{text}"
        );
        assert!(
            text.contains(&format!("extern volatile __thread __attribute__((aligned(8))) int d[] {dynamic}")),
            "{text}"
        );
    }

    #[test]
    fn assembly_is_refused_with_its_line() {
        let source = "# 1 \"mine.cu\"\nint a;\n\nvoid f() {\n  asm(\"ret;\");\n}\n";
        let error = rewrite(source, "/headers/").err().expect("refused");
        assert!(error.starts_with("mine.cu:4: "), "{error}");
        let ours = "# 1 \"/headers/mscclpp/device.hpp\"\nvoid f() { asm(\"\"); }\n";
        assert!(rewrite(ours, "/headers/").is_ok());
        let system = "# 1 \"/usr/include/x.h\" 1 3 4\nint f() __asm__(\"g\");\n__attribute__((__noinline__)) int g();\n";
        assert_eq!(rewritten(system).text, system);
        // Words in literals are not replaced.
        rewritten(
            "const char* s = \"asm\"; const char* r = R\"x(asm \" )x\"; char c = '\\'', n = 1'000 ? 'a' : 'b';",
        );
    }

    #[test]
    fn everything_else_stays() {
        let source = "struct __align__(16) A { int x; };\n__device__ __forceinline__ int f(int a) { return a << 2; }\n";
        let text = rewritten(source).text;
        assert!(text.contains("struct __attribute__((aligned(16))) A { int x; };"), "{text}");
        assert!(
            text.contains("inline __attribute__((always_inline)) int f(int a) { return a << 2; }"),
            "{text}"
        );
    }
}
