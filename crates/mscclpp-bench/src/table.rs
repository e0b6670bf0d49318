//! A report as a table.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

use crate::{
    machine::Machine,
    report::{Measured, Report, Row, SizeOf},
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { platform, devices, driver, transport, commit, cores } = &self.machine;
        let devices = if devices.is_empty() { "none".to_owned() } else { devices.join(", ") };
        writeln!(f, "# devices    {devices}")?;
        writeln!(f, "# driver     {driver}, {cores} cores")?;
        writeln!(f, "# transport  {transport}")?;
        writeln!(f, "# commit     {commit}")?;
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        let columns: Vec<&Column> =
            COLUMNS.iter().filter(|column| self.rows.iter().any(column.shown)).collect();
        let mut table = Table::new();
        let titles = columns.iter().map(|column| column.title);
        table.load_style(presets::NOTHING).add_row(["#"].into_iter().chain(titles.clone()));
        table.add_rows(self.rows.iter().map(|row| {
            let cells = columns.iter().map(|column| (column.cell)(platform, row));
            [String::new()].into_iter().chain(cells)
        }));
        for (column, title) in table.column_iter_mut().zip([""].into_iter().chain(titles)) {
            let is_right = !WORDS.contains(&title);
            column.set_cell_alignment(if is_right { CellAlignment::Right } else { CellAlignment::Left });
            column.set_padding(if title.is_empty() { (0, 0) } else { (2, 0) });
        }
        writeln!(f, "#\n{}", table.trim_fmt())?;
        self.text.iter().try_for_each(|text| write!(f, "\n{text}"))
    }
}

/// A column of the table.
struct Column {
    title: &'static str,
    /// Whether a row has a value for the column. The column is shown if any row has one.
    shown: fn(&Row) -> bool,
    /// The text of the column for a platform and a row.
    cell: fn(&str, &Row) -> String,
}

const COLUMNS: &[Column] = &[
    column("platform", |platform, _| platform.to_owned()),
    column("workload", |_, row| row.workload.clone()),
    column("variant", |_, row| row.variant.clone()),
    column("size", |_, row| row.size_of.show(row.size)),
    column("rounds", |_, row| row.rounds.to_string()),
    column("unit", |_, row| row.unit.symbol().to_owned()),
    column("median", |_, row| time(row.times.map(|times| times.median))),
    column("min", |_, row| time(row.times.map(|times| times.min))),
    column("max", |_, row| time(row.times.map(|times| times.max))),
    column("algbw", |_, row| bandwidth(row.bandwidth.map(|both| both.algorithm))),
    column("busbw", |_, row| bandwidth(row.bandwidth.map(|both| both.bus))),
    Column { shown: |row| row.blocks.is_some(), ..column("per SM", |_, row| bandwidth(row.per_block())) },
    Column { shown: has_nccl, ..column("NCCL", |_, row| measured(row.nccl.and_then(|nccl| nccl.plain))) },
    Column {
        shown: has_nccl,
        ..column("windows", |_, row| measured(row.nccl.and_then(|nccl| nccl.windows)))
    },
    Column {
        shown: has_nccl,
        ..column("ratio", |_, row| row.ratio().map_or_else(none, |it| format!("{it:.2}")))
    },
    column("baseline", |_, row| time(row.baseline)),
    column("goal", |_, row| time(row.goal)),
    column("check", |_, row| row.check().to_owned()),
];
/// The columns that have words and are aligned to the left. The first has no title: it has the mark of a comment.
const WORDS: [&str; 5] = ["", "platform", "workload", "variant", "check"];

/// A column that is always shown.
const fn column(title: &'static str, cell: fn(&str, &Row) -> String) -> Column {
    Column { title, shown: |_| true, cell }
}

fn has_nccl(row: &Row) -> bool {
    row.nccl.is_some()
}

fn none() -> String {
    "-".to_owned()
}

/// A time with at least three significant digits.
pub(crate) fn time(value: Option<f64>) -> String {
    match value {
        None => none(),
        Some(value) if value < 0.1 => format!("{value:.6}"),
        Some(value) => format!("{value:.3}"),
    }
}

/// The median of a measurement, or FAILED if its result was wrong.
fn measured(side: Option<Measured>) -> String {
    side.map_or_else(none, |side| side.times.map_or_else(|| "FAILED".to_owned(), |it| time(Some(it.median))))
}

/// A bandwidth in GB/s. That of one element of a ping-pong is small and needs more digits.
fn bandwidth(value: Option<f64>) -> String {
    match value {
        None => none(),
        Some(value) if value < 1.0 => format!("{value:.4}"),
        Some(value) => format!("{value:.2}"),
    }
}

impl SizeOf {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Rounds => "rounds",
            Self::Ranks => "ranks",
            Self::Threads => "threads",
            Self::Milliseconds => "milliseconds",
        }
    }

    /// A size in readable form: `1 KiB`, `1000 rounds`.
    pub(crate) fn show(self, size: u64) -> String {
        match self {
            Self::Bytes => readable_bytes(size),
            Self::Threads if size == 1 => "1 thread".to_owned(),
            Self::Milliseconds => format!("{size} ms"),
            Self::Rounds | Self::Ranks | Self::Threads => format!("{size} {}", self.name()),
        }
    }
}

/// Bytes in the largest unit that gives a whole number, so that nothing is rounded: 1024 is `1 KiB`, 1025 is `1025 B`.
pub(crate) fn readable_bytes(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value == 0 || value % 1024 != 0 {
            break;
        }
        (value, unit) = (value / 1024, larger);
    }
    format!("{value} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Bandwidth, Nccl, Times};

    #[test]
    fn bytes_are_readable_and_exact() {
        for (bytes, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1000, "1000 B"),
            (1024, "1 KiB"),
            (1025, "1025 B"),
            (1536, "1536 B"),
            (3 << 10, "3 KiB"),
            (128 << 20, "128 MiB"),
            (1 << 30, "1 GiB"),
            (1 << 50, "1024 TiB"),
        ] {
            assert_eq!(readable_bytes(bytes), text);
        }
    }

    #[test]
    fn columns_line_up_and_a_failed_row_has_no_figures() {
        let row = Row {
            workload: "memory-put".to_owned(),
            variant: "a variant with a long name".to_owned(),
            size: 1024,
            times: Some(Times { median: 5.0, min: 4.0, max: 6.0 }),
            rounds: 1000,
            repeats: 5,
            bandwidth: Some(Bandwidth::of(1024, 5.0)),
            baseline: Some(6.67),
            goal: Some(5.0),
            ..Row::default()
        };
        let failed =
            Row { variant: "short".to_owned(), times: None, bandwidth: None, size: 128 << 20, ..row.clone() };
        let report = Report::new(Machine::of(&[], "CudaIpc"), vec![row, failed], Vec::new());
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("median")).collect();
        let [header, ok, failed] = lines[..] else { panic!("a header and two rows: {text}") };
        for title in ["size", "median", "algbw", "busbw", "goal"] {
            let end = header.find(title).expect(title) + title.len();
            for line in [ok, failed] {
                assert!(line.as_bytes()[end - 1] != b' ' && line.as_bytes()[end] == b' ', "{title}: {text}");
            }
        }
        assert!(ok.contains("1 KiB") && ok.contains(" 5.000 ") && ok.ends_with("ok"), "{ok}");
        assert!(failed.ends_with("FAILED") && !failed.contains("4.000"), "{failed}");
        assert!(!text.contains("per SM") && !text.contains("NCCL"), "{text}");
    }

    #[test]
    fn columns_of_nccl_are_there_if_it_was_measured() {
        let times = |median| Some(Times { median, min: median, max: median });
        let row = Row {
            times: times(2.0),
            bandwidth: Some(Bandwidth { algorithm: 8.0, bus: 8.0 }),
            blocks: Some(16),
            nccl: Some(Nccl { plain: Some(Measured { times: times(7.0) }), windows: None }),
            ..Row::default()
        };
        let wrong =
            Row { nccl: Some(Nccl { plain: Some(Measured { times: None }), windows: None }), ..row.clone() };
        let report = Report::new(Machine::of(&[], "CudaIpc"), vec![row, wrong], Vec::new());
        let text = report.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().rev().take(2).map(|it| it.split_whitespace().collect()).collect();
        let [wrong, ok] = &lines[..] else { panic!("two rows: {text}") };
        assert!(text.contains("per SM    NCCL  windows  ratio  baseline"), "{text}");
        assert_eq!(ok[ok.len() - 7..], ["0.5000", "7.000", "-", "3.50", "-", "-", "ok"], "{text}");
        assert_eq!(
            wrong[wrong.len() - 8..],
            ["0.5000", "FAILED", "-", "-", "-", "-", "NCCL", "FAILED"],
            "{text}"
        );
    }
}
