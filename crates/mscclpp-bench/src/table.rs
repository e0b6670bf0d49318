//! The table of a run. Each row is printed as soon as it is measured.

use std::io::{self, Write};

use crate::{
    Result,
    machine::Machine,
    progress::Progress,
    report::{Measured, Report, Row, SizeOf},
};

/// The stream to which a table goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    /// The stream of ranks that report nothing.
    Nowhere,
}

/// The table of a run, on each of its ranks.
pub(crate) struct Table {
    stream: Stream,
    pub(crate) progress: Progress,
    machine: Option<Machine>,
    rows: Vec<Row>,
    layout: Layout,
    notes: Vec<String>,
    text: Option<String>,
}

impl Table {
    pub(crate) fn new(stream: Stream, rank: usize) -> Self {
        let progress = Progress::new(rank, stream != Stream::Nowhere);
        let (rows, layout) = (Vec::new(), Layout::default());
        Self { stream, progress, machine: None, rows, layout, notes: Vec::new(), text: None }
    }

    /// Begins the table of a run on `machine`, which measures so many cells.
    pub(crate) fn begin(&mut self, machine: Machine, cells: usize) -> Result<()> {
        self.progress.expect(cells);
        self.print(&head(&machine))?;
        self.machine = Some(machine);
        Ok(())
    }

    /// Prints a row, which has just been measured.
    pub(crate) fn push(&mut self, row: Row) -> Result<()> {
        self.progress.row();
        let platform = self.machine.as_ref().map_or("", |machine| &machine.platform);
        let text = self.layout.lines(platform, &row);
        self.print(&text)?;
        self.rows.push(row);
        Ok(())
    }

    /// Adds a remark on values for which the table has no columns.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a text, which is printed below the table.
    pub(crate) fn text(&mut self, text: String) {
        self.text = Some(text);
    }

    /// Prints what stands below the rows.
    pub(crate) fn end(&self) -> Result<()> {
        let notes: String = self.notes.iter().map(|note| format!("# {note}\n")).collect();
        let text = self.text.as_ref().map_or_else(String::new, |text| format!("\n{text}"));
        self.print(&format!("#\n{notes}{text}"))
    }

    /// The report of the run. `arguments` repeat the measurement.
    pub(crate) fn into_report(self, arguments: Vec<String>) -> Result<Report> {
        let machine = self.machine.ok_or("the workload has measured nothing")?;
        Ok(Report { arguments, machine, rows: self.rows, notes: self.notes, text: self.text })
    }

    fn print(&self, text: &str) -> Result<()> {
        let write = |stream: &mut dyn Write| stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
        let written = match self.stream {
            Stream::Stdout => write(&mut io::stdout().lock()),
            Stream::Stderr => write(&mut io::stderr().lock()),
            Stream::Nowhere => Ok(()),
        };
        written.map_err(|error| format!("writing the table: {error}").into())
    }
}

/// The lines above the table.
fn head(machine: &Machine) -> String {
    let Machine { devices, driver, transport, commit, cores, .. } = machine;
    let devices = if devices.is_empty() { "none".to_owned() } else { devices.join(", ") };
    format!(
        "# devices    {devices}\n# driver     {driver}, {cores} cores\n# transport  {transport}\n# commit     {commit}\n#\n"
    )
}

/// The columns of the rows so far, with their widths. Later rows are not known: a column becomes wider with the first row that
/// needs it.
#[derive(Default)]
struct Layout(Vec<(&'static Column, usize)>);

impl Layout {
    /// The line of a row; and before it the titles, if this is the first row that has all these columns.
    fn lines(&mut self, platform: &str, row: &Row) -> String {
        let is_there = |column: &Column| self.0.iter().any(|(it, _)| it.title == column.title);
        let shown: Vec<_> = COLUMNS.iter().filter(|it| is_there(it) || (it.shown)(row)).collect();
        let is_new = shown.len() > self.0.len();
        let cells: Vec<_> = shown.iter().map(|column| (column.cell)(platform, row)).collect();
        let width = |(column, cell): (&&'static Column, &String)| {
            let before =
                self.0.iter().find(|(it, _)| it.title == column.title).map_or(0, |(_, width)| *width);
            (*column, before.max(column.width).max(column.title.len()).max(cell.chars().count()))
        };
        self.0 = shown.iter().zip(&cells).map(width).collect();
        let line = |mark, cells: &[String]| {
            let cells = self.0.iter().zip(cells);
            let cells =
                cells.map(|((column, width), cell)| (&cell[..], *width, WORDS.contains(&column.title)));
            line([(mark, 1, true)].into_iter().chain(cells))
        };
        let titles: Vec<_> = shown.iter().map(|it| it.title.to_owned()).collect();
        let titles = if is_new { line("#", &titles) } else { String::new() };
        titles + &line(" ", &cells)
    }
}

/// Lays out lines of cells in columns, two spaces apart. A column is aligned to the left if it has words.
pub(crate) fn grid(lines: &[Vec<String>], has_words: impl Fn(usize) -> bool) -> String {
    let width = |n: usize| lines.iter().filter_map(|cells| Some(cells.get(n)?.chars().count())).max();
    let widths: Vec<usize> = (0..).map_while(width).collect();
    let cells = |cells: &Vec<String>| {
        line(
            cells.iter().zip(&widths).enumerate().map(|(n, (cell, width))| (&cell[..], *width, has_words(n))),
        )
    };
    lines.iter().map(cells).collect()
}

/// A line of cells, each with its width; a cell of words is aligned to the left.
fn line<'a>(cells: impl Iterator<Item = (&'a str, usize, bool)>) -> String {
    let cells: Vec<_> = cells
        .map(|(cell, width, is_words)| match is_words {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        })
        .collect();
    format!("{}\n", cells.join("  ").trim_end())
}

/// A column of the table.
struct Column {
    title: &'static str,
    /// The least width, which later rows are likely to need.
    width: usize,
    /// Whether a row has a value for the column. The column is shown from the first row on that has one.
    shown: fn(&Row) -> bool,
    /// The text of the column for a platform and a row.
    cell: fn(&str, &Row) -> String,
}

static COLUMNS: [Column; 18] = [
    column("platform", |platform, _| platform.to_owned()),
    column("workload", |_, row| row.workload.clone()),
    Column { width: 20, ..column("variant", |_, row| row.variant.clone()) },
    column("size", |_, row| row.size_of.show(row.size)),
    column("rounds", |_, row| row.rounds.to_string()),
    Column { width: 0, ..column("unit", |_, row| row.unit.symbol().to_owned()) },
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
/// The columns that have words and are aligned to the left.
const WORDS: [&str; 4] = ["platform", "workload", "variant", "check"];

/// A column that is always shown, and wide enough for most numbers.
const fn column(title: &'static str, cell: fn(&str, &Row) -> String) -> Column {
    Column { title, width: 7, shown: |_| true, cell }
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

/// Breaks `text` between words into lines of at most `width` columns. A word that is longer stays whole.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
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

    fn lines(rows: &[Row]) -> String {
        let mut layout = Layout::default();
        rows.iter().map(|row| layout.lines("sim", row)).collect()
    }

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
    fn text_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 40), ["one two three"]);
        assert_eq!(wrapped(&"word ".repeat(17), 40).len(), 3);
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
        let text = lines(&[row, failed]);
        let lines: Vec<&str> = text.lines().collect();
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
        let text = lines(&[row, wrong]);
        let lines: Vec<Vec<&str>> =
            text.lines().rev().take(2).map(|it| it.split_whitespace().collect()).collect();
        let [wrong, ok] = &lines[..] else { panic!("two rows: {text}") };
        assert!(text.contains(" per SM     NCCL  windows    ratio  baseline"), "{text}");
        assert_eq!(ok[ok.len() - 7..], ["0.5000", "7.000", "-", "3.50", "-", "-", "ok"], "{text}");
        assert_eq!(
            wrong[wrong.len() - 8..],
            ["0.5000", "FAILED", "-", "-", "-", "-", "NCCL", "FAILED"],
            "{text}"
        );
    }

    #[test]
    fn a_row_with_a_new_column_or_a_longer_name_is_printed_with_its_titles_or_wider() {
        let row = |variant: &str, blocks| Row { variant: variant.to_owned(), blocks, ..Row::default() };
        let text =
            lines(&[row("copy", None), row("ll128", Some(8)), row("a name that needs more room", None)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 5 && !lines[0].contains("per SM") && lines[2].contains("per SM"), "{text}");
        assert!(lines[3].len() < lines[4].len(), "{text}");
    }
}
