//! The rows that every release compares: the library's speed between two GPUs of one node.

use super::commands::Command;
use crate::report::{Row, SizeOf};

/// A command, and a function that says which of its rows are compared.
struct Held(&'static str, fn(&Row) -> bool);

const HELD: [Held; 14] = [
    Held("signal-pingpong", all),
    Held("ll8-pingpong", all),
    Held("ll16-pingpong", all),
    Held("memory-put", all),
    Held("memory-put --bulk --blocks 8", |row| row.variant.starts_with("bulk")),
    Held("memory-get", all),
    Held("memory-put-packets", all),
    Held("port-put", all),
    Held("port-put --in-kernel", all),
    Held("port-pingpong", all),
    Held("port-pingpong --transport ethernet", all),
    Held("port-packet-pingpong", all),
    // One thread cannot keep the FIFO busy, and many threads that wait for it wait for each other.
    Held("fifo", |row| row.size_of == SizeOf::Threads && (row.size == 1) == (row.variant == "push and sync")),
    Held("ethernet-bw", all),
];

fn all(_: &Row) -> bool {
    true
}

pub(super) fn commands() -> Vec<Command> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    HELD.iter().map(|Held(line, rows)| Command::of_all(words(line), *rows)).collect()
}

#[cfg(test)]
mod tests {
    use crate::call;

    #[test]
    fn each_can_be_run() {
        for super::Held(line, _) in super::HELD {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            call::require_repeatable(&words).expect(line);
        }
    }
}
