//! The part of a row that is compared.

use crate::report::{Row, Times};

/// The properties by which a row is found again: its name, and its number among the rows of that name, from 0. The name has no
/// variant if the library chose it, because another selection does not make another row. In a file that somebody wrote, such a
/// row has no variant.
pub(super) type Key = (String, usize);

/// The keys of `rows`, each with its row.
pub(super) fn keys(rows: &[Row]) -> Vec<(Key, &Row)> {
    let mut keys: Vec<(Key, &Row)> = Vec::new();
    for row in rows {
        let variant = if row.blocks.is_some() { "" } else { &row.variant };
        let name = format!("{} {variant}, {}", row.workload, row.size_of.show(row.size));
        let nth = keys.iter().filter(|((other, _), _)| *other == name).count();
        keys.push(((name, nth), row));
    }
    keys
}

/// Whether the row's workload measures something else for comparison in the same run. The compared figure of its rows is the
/// ratio of the library's time to the other's.
pub(super) fn is_beside_another(row: &Row) -> bool {
    ["ethernet-bw", "ib-bw", "ib-lat"].contains(&&*row.workload)
}

/// Whether a row measures this library, and not something to compare it with.
pub(super) fn is_held(row: &Row) -> bool {
    let is_other = is_beside_another(row) && row.baseline.is_none() && !row.is_given();
    !is_other && !row.variant.starts_with("bare")
}

/// The compared figure of a row, of which less is better. None for results that were wrong, and for a goal alone.
pub(super) fn figure(row: &Row) -> Option<f64> {
    if row.is_given() {
        return row.baseline;
    }
    let median = row.times?.median;
    if is_beside_another(row) { Some(median / row.baseline?) } else { Some(median) }
}

pub(super) fn unit(row: &Row) -> &'static str {
    if is_beside_another(row) { "ratio" } else { row.unit.symbol() }
}

/// The earlier and the new turns of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    pub(super) old: Option<Times>,
    pub(super) new: Times,
    /// The number of new turns.
    pub(super) count: usize,
}

impl Turns {
    /// Summarises turns. None if there are no new ones.
    pub(super) fn of(old: Vec<f64>, new: Vec<f64>) -> Option<Self> {
        let count = new.len();
        Some(Self { old: Times::of(old), new: Times::of(new)?, count })
    }

    /// The change of the time in percent; below 0 it became faster. None if there are no earlier turns.
    pub(super) fn change(self) -> Option<f64> {
        Some(100.0 * (self.new.median / self.old?.median - 1.0))
    }

    /// Half the range of the turns in percent of their median, for the earlier or the new ones, whichever is larger. 0 for
    /// single turns.
    pub(super) fn noise(self) -> f64 {
        let of = |turns: Times| 50.0 * (turns.max - turns.min) / turns.median;
        self.old.map_or(0.0, of).max(of(self.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: &str, variant: &str, median: f64) -> Row {
        let times = Some(Times { median, min: median, max: median });
        Row {
            workload: workload.to_owned(),
            variant: variant.to_owned(),
            size: 8,
            times,
            repeats: 1,
            ..Row::default()
        }
    }

    #[test]
    fn rows_beside_another_are_held_in_comparison_with_it() {
        let ours = Row { baseline: Some(4.0), ..row("ethernet-bw", "host to host x1", 5.0) };
        assert_eq!((is_held(&ours), figure(&ours)), (true, Some(1.25)));
        assert!(!is_held(&row("ethernet-bw", "plain socket", 4.0)));
        assert!(!is_held(&row("signal-pingpong", "bare relaxed", 0.7)));
        let of_gpus = Row { baseline: Some(1.45), ..row("signal-pingpong", "relaxed", 0.7) };
        assert_eq!((is_held(&of_gpus), figure(&of_gpus)), (true, Some(0.7)), "a figure of another machine");
        assert_eq!(figure(&Row { times: None, ..of_gpus.clone() }), None);
        assert_eq!(
            figure(&Row { times: None, repeats: 0, ..of_gpus }),
            Some(1.45),
            "a figure that somebody wrote"
        );
    }

    #[test]
    fn a_row_is_found_again_whatever_the_library_chose() {
        let chosen = |variant: &str| Row { blocks: Some(8), ..row("all-reduce", variant, 1.0) };
        let before = [chosen("ll16 8x512"), chosen("ll128 8x512")];
        let after = [chosen("ll128 16x512"), chosen("ll128 8x512")];
        let of = |rows: &[Row]| keys(rows).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(of(&before), of(&after));
        assert_eq!(of(&[row("all-reduce", "", 1.0)]), of(&after[..1]));
        assert_ne!(of(&before)[0], of(&before)[1]);
        assert_ne!(of(&[row("memory-put", "none 32x1024", 1.0)]), of(&[row("memory-put", "half", 1.0)]));
    }

    #[test]
    fn the_noise_is_that_of_the_side_that_differs_more() {
        let turns = Turns::of(vec![10.0], vec![10.0, 11.0, 10.5]).expect("turns");
        assert!(turns.change().is_some_and(|change| (change - 5.0).abs() < 1e-9));
        assert!((turns.noise() - 50.0 / 10.5).abs() < 1e-9);
        let other = Turns::of(vec![9.0, 10.0, 11.0], vec![10.0, 10.0]).expect("turns");
        assert!((other.noise() - 10.0).abs() < 1e-9);
        assert!(Turns::of(vec![1.0], Vec::new()).is_none());
        assert_eq!(Turns::of(Vec::new(), vec![1.0]).and_then(Turns::change), None);
    }
}
