//! The verdict on each row, as a table, and a sentence for each row that has become slower.

use super::{
    commands::{Command, HeldRow},
    figure::{Turns, unit},
};
use crate::table::{grid, time};

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
    /// The name of the verdict, and whether a row with it holds.
    fn shown(self) -> (&'static str, bool) {
        match self {
            Self::Holds => ("holds", true),
            Self::Faster => ("faster", true),
            Self::WithinNoise => ("within its noise", true),
            Self::Fell => ("FELL", false),
            Self::NotRepeated => ("SLOWER, NOT REPEATED", false),
            Self::Missing => ("MISSING", false),
            Self::Wrong => ("WRONG", false),
            Self::Measured => ("measured", true),
        }
    }

    fn of(row: &HeldRow, tolerance: f64, compares: bool) -> Self {
        let Some(turns) = row.turns().filter(|_| row.is_right) else {
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
}

/// Judges the rows of all commands. `compares`: whether there are earlier figures. Returns the table with what is said below it,
/// and whether all rows hold.
pub(super) fn of_all(commands: &[Command], tolerance: f64, compares: bool) -> (String, bool) {
    let all = || commands.iter().flat_map(|command| command.rows().map(move |row| (command, row)));
    let goals = all().filter(|(_, row)| row.goal().is_some()).count();
    let titles = ["#", "row", "unit", "before", "now", "change", "noise", "turns", "goal", "verdict"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    let (mut below, mut good) = (String::new(), 0);
    for (command, row) in all() {
        let mut name = row.row.name();
        if all().filter(|(_, other)| other.row.name() == name).count() > 1 {
            name += &format!(" ({})", command.line());
        }
        let verdict = Verdict::of(row, tolerance, compares);
        let [before, now, change, noise, count] = row.turns().map_or_else(Default::default, |turns| {
            [
                time(turns.old.map(|times| times.median)),
                time(Some(turns.new.median)),
                turns.change().map_or_else(|| "-".to_owned(), |change| format!("{change:+.1} %")),
                format!("{:.1} %", turns.noise()),
                turns.count.to_string(),
            ]
        });
        let (shown, is_good) = verdict.shown();
        match is_good {
            true => good += 1,
            false => below += &format!("{name}: {}\n", in_words(verdict, row)),
        }
        let (unit, goal, verdict) = (unit(&row.row).to_owned(), time(row.goal()), shown.to_owned());
        lines.push(vec![String::new(), name, unit, before, now, change, noise, count, goal, verdict]);
    }
    let rows = lines.len() - 1;
    if goals == 0 {
        lines.iter_mut().for_each(|cells| drop(cells.remove(8)));
    }
    let verdicts = lines[0].len() - 1;
    let troubles: Vec<_> = commands.iter().filter_map(|command| command.trouble.as_deref()).collect();
    below.extend(troubles.iter().map(|trouble| format!("{trouble}\n")));
    if goals > 0 {
        let reached = all().filter(|(_, row)| row.reaches_its_goal()).count();
        below += &format!("{reached} of {goals} goals are reached\n");
    }
    below += &match compares {
        true => format!("{good} of {rows} rows hold, within {tolerance} %\n"),
        false => format!("{good} of {rows} rows were measured, and compared with nothing\n"),
    };
    let table = grid(&lines, |n| n < 3 || n == verdicts);
    let notes: String = notes(commands).iter().map(|note| format!("# {note}\n")).collect();
    (format!("{notes}#\n{table}\n{below}"), troubles.is_empty() && good == rows)
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

/// The words about a row that has become slower, is missing or is wrong.
fn in_words(verdict: Verdict, row: &HeldRow) -> String {
    match (verdict, row.turns()) {
        (Verdict::Missing, _) => "missing: there is no such row any more, or it was not measured".to_owned(),
        (Verdict::Fell | Verdict::NotRepeated, Some(turns @ Turns { old: Some(old), .. })) => {
            let unit = unit(&row.row);
            let again = match verdict {
                Verdict::Fell => format!("the median of {} turns, noise {:.1} %", turns.count, turns.noise()),
                _ => "measured once: there was no time left to look again (--limit)".to_owned(),
            };
            format!(
                "{} {unit} before, {} {unit} now: {:.1} % more ({again})",
                time(Some(old.median)),
                time(Some(turns.new.median)),
                turns.change().unwrap_or_default()
            )
        }
        _ => "the results were wrong".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hold::figure::Key, report::Row};

    fn verdict(old: &[f64], new: &[f64]) -> Verdict {
        let (key, row, figures) = (Key::default(), Row::default(), [old.to_vec(), new.to_vec()]);
        Verdict::of(&HeldRow { key, row, figures, is_right: true }, 3.0, true)
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
