//! The names of a kernel's parameters, for messages: drivers know sizes alone, sources have the names.

/// The names of the parameters of `kernel` as `source` declares them. Empty if it is not found there, as when a macro or a
/// header declares it.
pub(crate) fn parameter_names(source: &str, kernel: &str) -> Vec<String> {
    let source = without_comments(source);
    let mut rest = &*source;
    while let Some(at) = rest.find("__global__") {
        rest = &rest[at + "__global__".len()..];
        let head = &rest[..rest.find(['{', ';']).unwrap_or(rest.len())];
        let is_kernel = |at: &usize| {
            !head[..*at].ends_with(is_word) && head[at + kernel.len()..].trim_start().starts_with('(')
        };
        if let Some(at) = head.match_indices(kernel).map(|(at, _)| at).find(is_kernel) {
            return names(head[at + kernel.len()..].trim_start());
        }
    }
    Vec::new()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_comments(mut source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    while let Some(at) = source.find("//").into_iter().chain(source.find("/*")).min() {
        let (before, comment) = source.split_at(at);
        text.push_str(before);
        text.push(' ');
        let end = if comment.starts_with("//") {
            comment.find('\n')
        } else {
            comment.find("*/").map(|end| end + 2)
        };
        source = &comment[end.unwrap_or(comment.len())..];
    }
    text + source
}

/// The last word of each parameter, of a text that begins with the parenthesis in front of the first one.
fn names(text: &str) -> Vec<String> {
    let (mut depth, mut names, mut parameter) = (0, Vec::new(), String::new());
    for c in text.chars() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 || depth == 1 && c == ',' {
            names.extend(parameter.rsplit(|c| !is_word(c)).find(|word| !word.is_empty()).map(str::to_owned));
            parameter.clear();
        } else if depth == 1 && !matches!(c, '(' | '>' | ')' | ']') {
            parameter.push(c);
        }
        if depth == 0 {
            break;
        }
    }
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
