//! The names of a kernel's parameters, for messages: drivers know only sizes, sources have the names.

use crate::tokens::{Kind, Token, tokens};

/// Returns the names of the parameters of `kernel` as `source` declares them. Empty if it is not found there, as when a
/// macro or a header declares it.
pub(crate) fn parameter_names(source: &str, kernel: &str) -> Vec<String> {
    let mut code = tokens(source);
    code.retain(|token| matches!(token.kind, Kind::Word | Kind::Other));
    let mut declarations = code.split(|token| token.text == "__global__").skip(1);
    let found = declarations.find_map(|declaration| {
        let head = declaration.split(|token| matches!(token.text, "{" | ";")).next()?;
        let at = head.windows(2).position(|pair| pair[0].text == kernel && pair[1].text == "(")?;
        Some(names(&head[at + 1..]))
    });
    found.unwrap_or_default()
}

/// Returns the last word of each parameter; the first token is the parenthesis before them.
fn names(tokens: &[Token<'_>]) -> Vec<String> {
    let (mut depth, mut names, mut last) = (0, Vec::new(), None);
    for token in tokens {
        match token.text {
            "(" | "<" | "[" => depth += 1,
            ")" | ">" | "]" => depth -= 1,
            "," if depth == 1 => names.extend(last.take()),
            word if depth == 1 && token.kind == Kind::Word => last = Some(word.to_owned()),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names.extend(last);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        // extern "C" __global__ void ring(int of, int a, int comment) {}
        __device__ void ring_step(int x);
        extern "C" __global__ void ring_all(float only) {}
        extern "C" __global__ void __launch_bounds__(1024, 1)
            ring(const mscclpp::DeviceHandle<mscclpp::MemoryChannel, 2>* __restrict__ to, /* (, */ int rank,
                 Vec<Pair<int, int>> pairs, uint64_t bytes [4]) { ring_step(rank); }
        __global__ void none() {}
    "#;

    #[test]
    fn names_are_found_where_a_kernel_is_declared() {
        assert_eq!(parameter_names(SOURCE, "ring"), ["to", "rank", "pairs", "bytes"]);
        assert_eq!(parameter_names(SOURCE, "ring_all"), ["only"]);
        for unknown in ["none", "ring_step", "all", ""] {
            assert!(parameter_names(SOURCE, unknown).is_empty(), "{unknown}");
        }
    }
}
