//! Chooses the best of the measured candidates, and writes the table that follows from them as Rust text.

use std::fmt::Write;

use mscclpp_collectives::Selection;

use crate::collectives::What;

/// The fastest choice for messages of `bytes` bytes between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Best {
    pub(super) what: What,
    pub(super) bytes: u64,
    pub(super) selection: Selection,
}

/// The factor by which times must differ: of two closer ones, the choice that leaves more of the device to others is better.
const ENOUGH: f64 = 1.02;

/// The index of the best candidate among those with a time.
pub(super) fn best(measured: &[(Selection, Option<f64>)]) -> Option<usize> {
    let times = measured.iter().filter_map(|(_, us)| *us);
    let fastest = times.min_by(f64::total_cmp)?;
    let near = |(_, us): &(Selection, Option<f64>)| us.is_some_and(|us| us <= fastest * ENOUGH);
    let all = measured.iter().enumerate().filter(|(_, it)| near(it));
    all.min_by_key(|(_, (selection, _))| (selection.blocks, selection.threads)).map(|(n, _)| n)
}

/// A table for `tables.rs` of the collectives' crate. A size also stands for smaller ones, and for larger ones up to the whole
/// square root of `factor`, by which the sizes differ.
pub(super) fn rust(all: &[Best], factor: u64, comment: &str) -> String {
    let mut text = format!("/// {comment}\nconst MEASURED: Table = Table {{\n");
    for (field, what) in [
        ("all_reduce", What::AllReduce),
        ("reduce_scatter", What::ReduceScatter),
        ("exchange", What::AllGather),
        ("exchange", What::AllToAll),
    ] {
        let of_this: Vec<_> = all.iter().filter(|best| best.what == what).collect();
        // Both give the same field; that of all_gather is used if both were measured.
        let twice = what == What::AllToAll && all.iter().any(|best| best.what == What::AllGather);
        if of_this.is_empty() || twice {
            continue;
        }
        let _ = writeln!(text, "    {field}: &[");
        for (n, best) in of_this.iter().enumerate() {
            let next = of_this.get(n + 1);
            if next.is_some_and(|next| next.selection == best.selection) {
                continue;
            }
            let up_to = next.map_or_else(|| "u64::MAX".to_owned(), |_| bytes(best.bytes * factor.isqrt()));
            let Selection { protocol, two_steps, blocks, threads } = best.selection;
            let steps = if two_steps { "two_steps" } else { "one_step" };
            let _ = writeln!(text, "        {steps}({up_to}, Protocol::{protocol:?}, {blocks}, {threads}),");
        }
        text.push_str("    ],\n");
    }
    text + "};\n"
}

/// A size as the tables write it.
fn bytes(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} * MIB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} * KIB", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_collectives::Protocol;

    use super::*;

    fn selection(protocol: Protocol, blocks: u32, threads: u32) -> Selection {
        Selection { protocol, two_steps: false, blocks, threads }
    }

    #[test]
    fn the_best_is_fast_and_takes_little() {
        let of = |times: &[(u32, Option<f64>)]| {
            let all: Vec<_> =
                times.iter().map(|(blocks, us)| (selection(Protocol::Ll128, *blocks, 256), *us)).collect();
            best(&all)
        };
        assert_eq!(of(&[(128, Some(10.0)), (16, Some(10.1)), (4, Some(11.0))]), Some(1));
        assert_eq!(of(&[(128, Some(10.0)), (16, Some(10.5)), (4, None)]), Some(0));
        assert_eq!(of(&[(4, None)]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_table_is_what_the_library_has() {
        let row =
            |what, bytes, protocol, blocks| Best { what, bytes, selection: selection(protocol, blocks, 256) };
        let all = [
            row(What::AllReduce, 1 << 10, Protocol::Ll16, 2),
            row(What::AllReduce, 4 << 10, Protocol::Ll16, 2),
            row(What::AllReduce, 1 << 20, Protocol::Ll128, 128),
            Best {
                selection: Selection { two_steps: true, ..selection(Protocol::Simple, 128, 256) },
                ..row(What::AllReduce, 4 << 20, Protocol::Simple, 128)
            },
            row(What::AllGather, 96, Protocol::Ll16, 2),
            row(What::AllGather, 384, Protocol::Ll128, 2),
            row(What::AllToAll, 96, Protocol::Simple, 2),
        ];
        let expected = "/// Two of them.
const MEASURED: Table = Table {
    all_reduce: &[
        one_step(8 * KIB, Protocol::Ll16, 2, 256),
        one_step(2 * MIB, Protocol::Ll128, 128, 256),
        two_steps(u64::MAX, Protocol::Simple, 128, 256),
    ],
    exchange: &[
        one_step(192, Protocol::Ll16, 2, 256),
        one_step(u64::MAX, Protocol::Ll128, 2, 256),
    ],
};
";
        assert_eq!(rust(&all, 4, "Two of them."), expected);
    }
}
