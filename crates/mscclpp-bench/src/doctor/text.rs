//! The report as text, 100 columns wide.

use std::{collections::BTreeSet, fmt};

use super::finding::{Cell, Finding, Outcome, Report};
use crate::table::{grid, wrapped};

const COLUMNS: usize = 100;
/// The width of the widest item with which others are aligned.
const WIDEST_ITEM: usize = 22;
/// The width of the status in front of an item.
const STATUS: usize = 6;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mscclpp {}: what this machine can do", env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "ok: works   --: does not, and nothing here needs it   !!: does not, and is needed")?;
        for (section, findings) in &self.sections {
            writeln!(f, "\n{}", section.title())?;
            if findings.is_empty() {
                writeln!(f, "      nothing to look at")?;
            }
            write_table(f, findings)?;
            let lines = lines(findings);
            let widths = lines.iter().map(|(item, _)| item.chars().count());
            let width = widths.filter(|width| *width <= WIDEST_ITEM).max().unwrap_or(0);
            for (item, outcome) in &lines {
                write_line(f, item, outcome, width)?;
            }
        }
        match self.problems {
            0 => writeln!(f, "\nNo problems."),
            1 => writeln!(f, "\n1 problem, marked !! above."),
            many => writeln!(f, "\n{many} problems, marked !! above."),
        }
    }
}

/// Writes the table of a section.
fn write_table(f: &mut fmt::Formatter<'_>, findings: &[Finding]) -> fmt::Result {
    let cells: Vec<&Cell> = findings.iter().filter_map(|finding| finding.cell.as_ref()).collect();
    let Some(widest) = cells.iter().map(|cell| cell.text.chars().count()).max() else { return Ok(()) };
    let columns: BTreeSet<usize> = cells.iter().map(|cell| cell.column).collect();
    // Rows are in the order of their first cells.
    let mut rows: Vec<&str> = Vec::new();
    cells.iter().for_each(|cell| rows.extend(Some(&*cell.row).filter(|row| !rows.contains(row))));
    let width = widest.max(2);
    let titles = columns.iter().map(|column| format!("{column:>width$}"));
    let mut lines: Vec<Vec<_>> = vec![[" ".repeat(STATUS)].into_iter().chain(titles).collect()];
    for row in rows {
        let text = |column: &usize| {
            let cell = cells.iter().find(|cell| cell.row == row && cell.column == *column);
            format!("{:>width$}", cell.map_or("", |cell| &cell.text))
        };
        lines.push([" ".repeat(STATUS) + row].into_iter().chain(columns.iter().map(text)).collect());
    }
    f.write_str(&grid(&lines, |n| n == 0))
}

/// The findings that get lines of their own: those in no table, and failures in a table, with equal ones together.
fn lines(findings: &[Finding]) -> Vec<(String, &Outcome)> {
    let mut lines: Vec<(String, &Outcome)> = Vec::new();
    let mut of_tables: Vec<(Vec<&str>, &Outcome)> = Vec::new();
    for finding in findings {
        match (&finding.cell, &finding.outcome) {
            (None, outcome) => lines.push((finding.item.clone(), outcome)),
            (Some(_), Outcome::Ok { .. } | Outcome::Note { .. }) => {}
            (Some(_), outcome) => match of_tables.iter_mut().find(|(_, other)| *other == outcome) {
                Some((items, _)) => items.push(&finding.item),
                None => of_tables.push((vec![&finding.item], outcome)),
            },
        }
    }
    lines.extend(of_tables.into_iter().map(|(items, outcome)| {
        let item = match items.as_slice() {
            [first, _, ..] => format!("{first} and {} more", items.len() - 1),
            _ => items.concat(),
        };
        (item, outcome)
    }));
    lines
}

fn write_line(f: &mut fmt::Formatter<'_>, item: &str, outcome: &Outcome, width: usize) -> fmt::Result {
    let (text, remedy) = match outcome {
        Outcome::Ok { text } | Outcome::Note { text } => (text, None),
        Outcome::Unavailable { reason, remedy } | Outcome::Problem { reason, remedy } => {
            (reason, Some(format!("-> {remedy}")))
        }
    };
    let indent = STATUS + width + 2;
    let mut first = format!("  {:<w$}{item:<width$}", outcome.mark(), w = STATUS - 2);
    if item.chars().count() > width {
        // The text begins on the next line.
        writeln!(f, "{first}")?;
        first.clear();
    }
    for text in [Some(text), remedy.as_ref()].into_iter().flatten() {
        for line in wrapped(text, COLUMNS - indent) {
            writeln!(f, "{}", format!("{first:<indent$}{line}").trim_end())?;
            first.clear();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Section::{Limits, Peers, Rdma};

    #[test]
    fn lines_are_aligned_and_wrapped() {
        let long = "word ".repeat(40);
        let report = Report::of(
            [],
            vec![
                Limits.ok("short", "fine"),
                Limits.unavailable("longer item", long, "do this"),
                Limits.problem("an item that is longer than all others", "bad", "do that"),
            ],
        );
        let text = report.to_string();
        assert!(text.contains("\n  ok  short        fine\n"), "{text}");
        assert!(text.contains("\n  --  longer item  word word"), "{text}");
        assert!(text.contains("\n                   -> do this\n"), "{text}");
        assert!(
            text.contains("\n  !!  an item that is longer than all others\n                   bad\n"),
            "{text}"
        );
        assert!(text.ends_with("\n1 problem, marked !! above.\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn tables_have_cells_and_lines_for_what_does_not_work() {
        let refused = |from: usize, to: usize| {
            let item = format!("{from} to {to}");
            Peers.unavailable(item, "no peer access", "none").at(from.to_string(), to, "--")
        };
        let report = Report::of(
            [],
            vec![
                Peers.ok("0 to 1", "390 GB/s").at("0", 1, "390"),
                refused(1, 0),
                refused(2, 0),
                Rdma.note("outside", "text"),
            ],
        );
        let text = report.to_string();
        assert!(
            text.contains("\n           0    1\n      0       390\n      1   --\n      2   --\n"),
            "{text}"
        );
        assert!(text.contains("  --  1 to 0 and 1 more  no peer access"), "{text}");
        assert!(!text.contains("390 GB/s"), "the table says it: {text}");
    }
}
