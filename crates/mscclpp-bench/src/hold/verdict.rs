//! The verdict on each row, as a table, and a sentence for each row that has become slower.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

use super::{
    commands::{Command, HeldRow},
    figure::{Turns, unit},
};
use crate::table::time;

/// The verdict on a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    Faster,
    /// The row looks slower by less than its noise.
    WithinNoise,
    Fell,
    /// The row looks slower, and there was no time to repeat it.
    NotRepeated,
    Missing,
    Wrong,
    /// There was nothing to compare the row with.
    Measured,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Faster => "faster",
            Self::WithinNoise => "within its noise",
            Self::Fell => "FELL",
            Self::NotRepeated => "SLOWER, NOT REPEATED",
            Self::Missing => "MISSING",
            Self::Wrong => "WRONG",
            Self::Measured => "measured",
        }
    }

    fn of(row: &HeldRow<'_>, tolerance: f64, compares: bool) -> Self {
        let Some(turns) = row.turns.filter(|_| row.is_right) else {
            return if row.is_right { Self::Missing } else { Self::Wrong };
        };
        match turns.change() {
            Some(change) => Self::of_change(change, turns, tolerance),
            None if compares && row.goal().is_none() => Self::Missing,
            None => Self::Measured,
        }
    }

    fn of_change(change: f64, turns: Turns, tolerance: f64) -> Self {
        match change {
            _ if change < -tolerance => Self::Faster,
            _ if change <= tolerance => Self::Holds,
            _ if turns.count < 2 => Self::NotRepeated,
            _ if change <= turns.noise() => Self::WithinNoise,
            _ => Self::Fell,
        }
    }

    fn is_good(self) -> bool {
        matches!(self, Self::Holds | Self::Faster | Self::WithinNoise | Self::Measured)
    }
}

/// A row and its verdict.
struct Judged<'a> {
    name: String,
    row: HeldRow<'a>,
    verdict: Verdict,
}

/// The verdicts on all rows.
pub(super) struct Verdicts<'a> {
    rows: Vec<Judged<'a>>,
    /// The reasons why commands could not be measured.
    troubles: Vec<&'a str>,
    notes: Vec<String>,
    tolerance: f64,
    compares: bool,
}

impl<'a> Verdicts<'a> {
    /// Judges the rows of all commands. `compares`: whether there are earlier figures.
    pub(super) fn of(commands: &'a [Command], tolerance: f64, compares: bool) -> Self {
        let all: Vec<_> =
            commands.iter().flat_map(|command| command.rows().map(move |row| (command, row))).collect();
        let names: Vec<_> = all.iter().map(|(_, row)| row.row.name()).collect();
        let judged = |(n, (command, row)): (usize, (&Command, HeldRow<'a>))| {
            let is_only_one = names.iter().filter(|name| **name == names[n]).count() == 1;
            let name =
                if is_only_one { names[n].clone() } else { format!("{} ({})", names[n], command.line()) };
            let verdict = Verdict::of(&row, tolerance, compares);
            Judged { name, row, verdict }
        };
        let rows = all.into_iter().enumerate().map(judged).collect();
        let troubles = commands.iter().filter_map(|command| command.trouble.as_deref()).collect();
        Self { rows, troubles, notes: notes(commands), tolerance, compares }
    }

    pub(super) fn all_hold(&self) -> bool {
        self.troubles.is_empty() && self.rows.iter().all(|row| row.verdict.is_good())
    }
}

/// Notes on the origin of the figures.
fn notes(commands: &[Command]) -> Vec<String> {
    let Some((old, new)) = commands.iter().find_map(Command::machines) else { return Vec::new() };
    let mut notes = vec![
        format!("before     {}, commit {}", old.described(), old.commit),
        format!("now        {}, commit {}", new.described(), new.commit),
    ];
    for (what, old, new) in
        [("drivers", &old.driver, &new.driver), ("cores", &old.cores.to_string(), &new.cores.to_string())]
    {
        if old != new {
            notes.push(format!("the {what} are not the same: {old} before, {new} now"));
        }
    }
    if new.platform == "sim" {
        notes.push("times of simulated devices are noise: give a --tolerance of hundreds".to_owned());
    }
    notes
}

impl fmt::Display for Verdicts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        let mut table = Table::new();
        let goals: Vec<_> = self.rows.iter().filter_map(|it| Some((&it.row, it.row.goal()?))).collect();
        let titles = ["#", "row", "unit", "before", "now", "change", "noise", "turns"].into_iter();
        let title = (!goals.is_empty()).then_some("goal").into_iter();
        table.load_style(presets::NOTHING).add_row(titles.chain(title).chain(["verdict"]));
        for Judged { name, row, verdict } in &self.rows {
            let figures = row.turns.map_or_else(Default::default, |turns| {
                [
                    time(turns.old.map(|times| times.median)),
                    time(Some(turns.new.median)),
                    turns.change().map_or_else(|| "-".to_owned(), |change| format!("{change:+.1} %")),
                    format!("{:.1} %", turns.noise()),
                    turns.count.to_string(),
                ]
            });
            let words = [String::new(), name.clone(), unit(row.row).to_owned()];
            let goal = (!goals.is_empty()).then(|| time(row.goal()));
            table.add_row(words.into_iter().chain(figures).chain(goal).chain([verdict.name().to_owned()]));
        }
        for (n, column) in table.column_iter_mut().enumerate() {
            let is_number = (3..8 + usize::from(!goals.is_empty())).contains(&n);
            column.set_cell_alignment(if is_number { CellAlignment::Right } else { CellAlignment::Left });
            column.set_padding(if n == 0 { (0, 0) } else { (2, 0) });
        }
        writeln!(f, "#\n{}\n", table.trim_fmt())?;
        for judged in self.rows.iter().filter(|row| !row.verdict.is_good()) {
            writeln!(f, "{}", judged.in_words())?;
        }
        for trouble in &self.troubles {
            writeln!(f, "{trouble}")?;
        }
        if !goals.is_empty() {
            let reached = goals.iter().filter(|(row, goal)| row.reaches(*goal)).count();
            writeln!(f, "{reached} of {} goals are reached", goals.len())?;
        }
        let (good, all) = (self.rows.iter().filter(|row| row.verdict.is_good()).count(), self.rows.len());
        match self.compares {
            true => writeln!(f, "{good} of {all} rows hold, within {} %", self.tolerance),
            false => writeln!(f, "{good} of {all} rows were measured, and compared with nothing"),
        }
    }
}

impl Judged<'_> {
    /// A sentence about a row that has become slower, is missing or is wrong.
    fn in_words(&self) -> String {
        let Self { name, row, verdict } = self;
        match (verdict, row.turns) {
            (Verdict::Missing, _) => {
                format!("{name}: missing: there is no such row any more, or it was not measured")
            }
            (Verdict::Fell | Verdict::NotRepeated, Some(turns @ Turns { old: Some(old), .. })) => {
                let unit = unit(row.row);
                let again = match verdict {
                    Verdict::Fell => {
                        format!("the median of {} turns, noise {:.1} %", turns.count, turns.noise())
                    }
                    _ => "measured once: there was no time left to look again (--limit)".to_owned(),
                };
                format!(
                    "{name}: {} {unit} before, {} {unit} now: {:.1} % more ({again})",
                    time(Some(old.median)),
                    time(Some(turns.new.median)),
                    turns.change().unwrap_or_default()
                )
            }
            _ => format!("{name}: the results were wrong"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    fn verdict(old: &[f64], new: &[f64]) -> Verdict {
        let turns = Turns::of(old.to_vec(), new.to_vec()).expect("turns");
        Verdict::of(&HeldRow { row: &Row::default(), turns: Some(turns), is_right: true }, 3.0, true)
    }

    #[test]
    fn a_row_falls_by_more_than_the_tolerance_and_its_noise() {
        assert_eq!(verdict(&[10.0], &[10.29]), Verdict::Holds);
        assert_eq!(verdict(&[10.0], &[9.0]), Verdict::Faster);
        assert_eq!(verdict(&[10.0], &[10.31]), Verdict::NotRepeated);
        assert_eq!(verdict(&[10.0], &[10.31, 10.4, 10.35]), Verdict::Fell);
        assert_eq!(verdict(&[10.0], &[10.0, 10.4, 11.0]), Verdict::WithinNoise);
        assert_eq!(verdict(&[9.5, 10.0, 10.5], &[10.4, 10.4, 10.4]), Verdict::WithinNoise);
        assert_eq!(verdict(&[9.5, 10.0, 10.5], &[10.6, 10.6, 10.6]), Verdict::Fell);
        assert_eq!(verdict(&[], &[10.0]), Verdict::Missing, "the program of before does not have it");
    }
}
