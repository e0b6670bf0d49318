//! The rows that every release compares: the library's speed between two GPUs of one node.

use super::commands::Command;
use crate::report::{Row, SizeOf};

/// The commands, each with a function that says which of its rows are compared.
const HELD: [(&str, Rows); 14] = [
    ("signal-pingpong", |_| true),
    ("ll8-pingpong", |_| true),
    ("ll16-pingpong", |_| true),
    ("memory-put", |_| true),
    ("memory-put --bulk --blocks 8", |row| row.variant.starts_with("bulk")),
    ("memory-get", |_| true),
    ("memory-put-packets", |_| true),
    ("port-put", |_| true),
    ("port-put --in-kernel", |_| true),
    ("port-pingpong", |_| true),
    ("port-pingpong --transport ethernet", |_| true),
    ("port-packet-pingpong", |_| true),
    // One thread cannot keep the FIFO busy, and many threads that wait for it wait for each other.
    ("fifo", |row| row.size_of == SizeOf::Threads && (row.size == 1) == (row.variant == "push and sync")),
    ("ethernet-bw", |_| true),
];

type Rows = fn(&Row) -> bool;

pub(super) fn commands() -> Vec<Command> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    HELD.iter().map(|(line, rows)| Command::new(words(line), *rows)).collect()
}

#[cfg(test)]
mod tests {
    use crate::call;

    #[test]
    fn each_can_be_run() {
        for (line, _) in super::HELD {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            call::require_repeatable(&words).expect(line);
        }
    }
}
