//! A report as a table.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

use crate::{
    machine::Machine,
    report::{Report, Row, SizeOf},
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
        let mut table = Table::new();
        table.load_style(presets::NOTHING).add_row(["#"].into_iter().chain(HEADER));
        table.add_rows(self.rows.iter().map(|row| cells(platform, row)));
        for (column, title) in table.column_iter_mut().zip([""].into_iter().chain(HEADER)) {
            let is_right = !WORDS.contains(&title);
            column.set_cell_alignment(if is_right { CellAlignment::Right } else { CellAlignment::Left });
            column.set_padding(if title.is_empty() { (0, 0) } else { (2, 0) });
        }
        writeln!(f, "#\n{}", table.trim_fmt())
    }
}

const COLUMNS: usize = 14;
const HEADER: [&str; COLUMNS] = [
    "platform", "workload", "variant", "size", "rounds", "unit", "median", "min", "max", "algbw", "busbw",
    "baseline", "goal", "check",
];
/// These columns are words and stand to the left. The first has no title: there is the mark of the comment.
const WORDS: [&str; 5] = ["", "platform", "workload", "variant", "check"];

fn cells(platform: &str, row: &Row) -> [String; 1 + COLUMNS] {
    let time = |value: Option<f64>| value.map_or_else(none, time);
    let bandwidth = |value: Option<f64>| value.map_or_else(none, bandwidth);
    [
        String::new(),
        platform.to_owned(),
        row.workload.clone(),
        row.variant.clone(),
        row.size_of.show(row.size),
        row.rounds.to_string(),
        row.unit.symbol().to_owned(),
        time(row.times.map(|times| times.median)),
        time(row.times.map(|times| times.min)),
        time(row.times.map(|times| times.max)),
        bandwidth(row.bandwidth.map(|both| both.algorithm)),
        bandwidth(row.bandwidth.map(|both| both.bus)),
        time(row.baseline),
        time(row.goal),
        row.check().to_owned(),
    ]
}

fn none() -> String {
    "-".to_owned()
}

/// With at least three digits that count.
fn time(value: f64) -> String {
    if value < 0.1 { format!("{value:.6}") } else { format!("{value:.3}") }
}

/// Of one element of a ping-pong it is some MB/s.
fn bandwidth(value: f64) -> String {
    if value < 1.0 { format!("{value:.4}") } else { format!("{value:.2}") }
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

    /// `size` for people: `1 KiB`, `1000 rounds`.
    pub(crate) fn show(self, size: u64) -> String {
        match self {
            Self::Bytes => readable_bytes(size),
            Self::Threads if size == 1 => "1 thread".to_owned(),
            Self::Milliseconds => format!("{size} ms"),
            Self::Rounds | Self::Ranks | Self::Threads => format!("{size} {}", self.name()),
        }
    }
}

/// In the largest unit that gives a whole number, so that nothing is rounded: 1024 is `1 KiB`, 1025 is `1025 B`.
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
    use crate::report::{Bandwidth, Times};

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
        let report =
            Report { machine: Machine::of(&[], "CudaIpc"), rows: vec![row, failed], notes: Vec::new() };
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
    }
}
