//! The names in a PTX text: the kernels that must be loaded at once, and the names that an error can list. Every driver
//! can load PTX, but only new ones can list what a module contains.

/// The kernels: the words after `.entry`.
pub(super) fn kernels(source: &str) -> Vec<String> {
    let mut words = source.split_whitespace();
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        if word == ".entry"
            && let Some(name) = words.next().map(identifier)
            && !name.is_empty()
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// The kernels with a line `griddepcontrol.wait`, without a condition. Devices have it from compute capability 9.0 on.
pub(super) fn waiting_kernels(source: &str) -> Vec<String> {
    let entries = source.split(".entry").skip(1);
    // A function may stand behind a kernel.
    let bodies = entries.filter_map(|entry| entry.split(".func").next());
    let is_wait = |line: &str| line.trim_start().starts_with("griddepcontrol.wait");
    let waiting = bodies.filter(|body| body.lines().any(is_wait));
    waiting.map(|body| identifier(body.trim_start())).collect()
}

/// The variables in `.const` and `.global` space: the last word of their declaration.
pub(super) fn variables(source: &str) -> Vec<String> {
    source.lines().filter_map(variable).collect()
}

fn variable(line: &str) -> Option<String> {
    let mut words = line
        .split_whitespace()
        .skip_while(|word| matches!(*word, ".visible" | ".extern" | ".weak" | ".common"));
    if !matches!(words.next()?, ".const" | ".global") {
        return None;
    }
    // `.align 8 .b8 handles[32];`: attributes start with a dot or are numbers, the name does neither.
    let name = words
        .map(identifier)
        .find(|word| word.starts_with(|c: char| c.is_alphabetic() || "_$%".contains(c)))?;
    Some(name)
}

/// The identifier that a word starts with.
fn identifier(word: &str) -> String {
    word.chars().take_while(|c| c.is_alphanumeric() || "_$%".contains(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
.version 8.4
.target sm_80
.address_size 64

.visible .const .align 8 .b8 constants[64];
.global .align 4 .u32 counter = 7;
.extern .shared .align 16 .b8 dynamic[];
	.weak .entry third(){ ret; }
.visible .entry ping_pong(
	.param .u64 ping_pong_param_0
)
{
	ld.param.u64 	%rd1, [ping_pong_param_0];
	ret;
}
	// .globl	_Z5otherv                // -- Begin function _Z5otherv
.entry
_Z5otherv()
{ ret; }
";

    #[test]
    fn finds_the_kernels() {
        assert_eq!(kernels(SOURCE), ["third", "ping_pong", "_Z5otherv"]);
        assert!(kernels(".entry").is_empty());
        assert!(kernels("").is_empty());
    }

    #[test]
    fn finds_the_kernels_that_wait() {
        let source = ".func other() {
            griddepcontrol.wait;
        }
        .entry one() {
            // griddepcontrol.wait;
            @%p1 griddepcontrol.wait;
            griddepcontrol.launch_dependents;
        }
        .func another() {
            griddepcontrol.wait;
        }
        .visible .entry two(.param .u64 p) {
            griddepcontrol.wait;
        }";
        assert_eq!(waiting_kernels(source), ["two"]);
        assert!(waiting_kernels(SOURCE).is_empty());
    }

    #[test]
    fn finds_the_variables() {
        assert_eq!(variables(SOURCE), ["constants", "counter"]);
    }
}
