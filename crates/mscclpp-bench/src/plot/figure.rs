//! The content of the picture: lines and their points, from the rows of result files.

use super::ResultFile;
use crate::{
    machine::Machine,
    report::{Row, SizeOf, Times},
};

#[derive(Debug)]
pub(super) struct Figure {
    /// The unit of all sizes.
    pub(super) size_of: SizeOf,
    /// The lines. There is at least one, and none is empty.
    pub(super) series: Vec<Series>,
    /// A text for each file and machine that says where it was measured.
    pub(super) captions: Vec<String>,
    /// The rows without times.
    pub(super) left_out: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// The points, in the order of their sizes.
    pub(super) points: Vec<Point>,
}

#[derive(Debug)]
pub(super) struct Point {
    pub(super) size: u64,
    pub(super) seconds: Times,
    /// The algorithm bandwidth, in GB/s.
    pub(super) bandwidth: Option<f64>,
}

impl Figure {
    /// Makes the figure of all rows of all files: one series for each workload and variant of a file.
    ///
    /// # Errors
    /// Rows that cannot be shown on an axis, or not on one picture, named by file and row.
    pub(super) fn of(files: &[ResultFile]) -> Result<Self, String> {
        let names = file_names(files);
        let mut size_of = None;
        let (mut left_out, mut captions) = (Vec::new(), Vec::new());
        let mut series = Vec::new();
        for (file, name) in files.iter().zip(&names) {
            // Series are in the order of their first rows, as in the table.
            let mut of_file: Vec<Series> = Vec::new();
            for row in file.reports.iter().flat_map(|report| &report.rows) {
                let named = format!("{} {}", row.workload, row.variant);
                let label = format!("{}: {named} {}", file.path.display(), row.size_of.show(row.size));
                let Some(point) = point(row).map_err(|why| format!("{label}: {why}"))? else {
                    left_out.push(label);
                    continue;
                };
                let first = *size_of.get_or_insert(row.size_of);
                if first != row.size_of {
                    return Err(format!(
                        "{label}: its size counts {}, that of rows before it {}; plot them apart",
                        row.size_of.name(),
                        first.name()
                    ));
                }
                let name = if files.len() > 1 { format!("{name}: {named}") } else { named };
                let name = name.trim_end().to_owned();
                match of_file.iter_mut().find(|series| series.name == name) {
                    Some(series) => series.points.push(point),
                    None => of_file.push(Series { name, points: vec![point] }),
                }
            }
            for report in &file.reports {
                let caption = format!("{name}: {}", caption(&report.machine));
                if !captions.contains(&caption) {
                    captions.push(caption);
                }
            }
            of_file.iter_mut().for_each(|series| series.points.sort_by_key(|point| point.size));
            series.extend(of_file);
        }
        match size_of {
            Some(size_of) => Ok(Self { size_of, series, captions, left_out }),
            None => {
                let paths: Vec<_> = files.iter().map(|file| file.path.display().to_string()).collect();
                Err(format!("{}: there is no row to draw", paths.join(", ")))
            }
        }
    }
}

/// The point of a row; none for a row that failed.
fn point(row: &Row) -> Result<Option<Point>, String> {
    if row.size == 0 {
        return Err("a size of 0 has no place on a logarithmic axis".to_owned());
    }
    let Some(times) = row.times else { return Ok(None) };
    let unit = row.unit.in_seconds();
    let [median, min, max] = [times.median, times.min, times.max].map(|time| time * unit);
    if ![median, min, max].iter().all(|time| time.is_normal() && *time > 0.0) {
        let Times { median, min, max } = times;
        return Err(format!("times of {median}, {min} and {max} have no place on a logarithmic axis"));
    }
    if !(min <= median && median <= max) {
        return Err(format!("the median {} is not between {} and {}", times.median, times.min, times.max));
    }
    let bandwidth = row.bandwidth.map(|bandwidth| bandwidth.algorithm);
    if let Some(value) = bandwidth.filter(|value| !value.is_finite() || *value < 0.0) {
        return Err(format!("{value} is no bandwidth"));
    }
    Ok(Some(Point { size: row.size, seconds: Times { median, min, max }, bandwidth }))
}

/// The names of the files, without their folders unless two would be equal.
fn file_names(files: &[ResultFile]) -> Vec<String> {
    let short = |file: &ResultFile| {
        file.path.file_name().unwrap_or(file.path.as_os_str()).to_string_lossy().into_owned()
    };
    files
        .iter()
        .map(|file| match files.iter().filter(|other| short(other) == short(file)).count() {
            1 => short(file),
            _ => file.path.display().to_string(),
        })
        .collect()
}

fn caption(machine: &Machine) -> String {
    format!("{}, {}, commit {}", machine.described(), machine.transport, machine.commit)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::{Bandwidth, Report};

    pub(in crate::plot) fn row(variant: &str, size: u64, us: f64) -> Row {
        Row {
            workload: "memory-put".to_owned(),
            variant: variant.to_owned(),
            size,
            times: Some(Times { median: us, min: us * 0.9, max: us * 1.1 }),
            rounds: 1000,
            repeats: 5,
            bandwidth: Some(Bandwidth::of(size, us)),
            ..Row::default()
        }
    }

    pub(in crate::plot) fn file(path: &str, rows: Vec<Row>) -> ResultFile {
        let report = Report::new(Machine::of(&[], "CudaIpc"), rows, Vec::new());
        ResultFile { path: path.into(), reports: vec![report] }
    }

    #[test]
    fn a_series_is_a_workload_and_variant_of_a_file_by_size() {
        let rows = vec![row("z", 1024, 5.0), row("a", 64, 1.0), row("z", 64, 4.0)];
        let figure =
            Figure::of(&[file("r/x.json", rows.clone()), file("r/y.json", rows)]).expect("good rows");
        let names: Vec<_> = figure.series.iter().map(|series| &series.name[..]).collect();
        assert_eq!(
            names,
            ["x.json: memory-put z", "x.json: memory-put a", "y.json: memory-put z", "y.json: memory-put a"]
        );
        let sizes: Vec<_> = figure.series[0].points.iter().map(|point| point.size).collect();
        assert_eq!(sizes, [64, 1024]);
        assert!((figure.series[0].points[1].seconds.median - 5e-6).abs() < 1e-15);
    }

    #[test]
    fn reports_of_a_file_share_its_lines() {
        let mut both = file("x.json", vec![row("a", 64, 1.0)]);
        both.reports.extend(file("x.json", vec![row("a", 128, 2.0), row("b", 64, 1.0)]).reports);
        let figure = Figure::of(&[both]).expect("good rows");
        let lines: Vec<_> = figure.series.iter().map(|line| (&line.name[..], line.points.len())).collect();
        assert_eq!(lines, [("memory-put a", 2), ("memory-put b", 1)]);
        assert_eq!(figure.captions.len(), 1, "{:?}", figure.captions);
    }

    #[test]
    fn files_of_one_name_are_told_apart_by_their_folders() {
        let rows = vec![row("a", 64, 1.0)];
        let figure =
            Figure::of(&[file("r/x.json", rows.clone()), file("s/x.json", rows)]).expect("good rows");
        assert_eq!(figure.series[1].name, "s/x.json: memory-put a");
    }

    #[test]
    fn failed_rows_are_left_out_and_named() {
        let failed = Row { times: None, bandwidth: None, ..row("a", 1 << 20, 1.0) };
        let figure =
            Figure::of(&[file("x.json", vec![row("a", 64, 1.0), failed.clone()])]).expect("one good row");
        assert_eq!(figure.left_out, ["x.json: memory-put a 1 MiB"]);
        assert_eq!(figure.series[0].points.len(), 1);
        let error = Figure::of(&[file("x.json", vec![failed])]).expect_err("nothing is left");
        assert!(error.contains("x.json") && error.contains("no row"), "{error}");
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error_with_file_and_row() {
        let times = |median, min, max| Some(Times { median, min, max });
        let good = row("a", 64, 1.0);
        for (bad, why) in [
            (Row { size: 0, ..good.clone() }, "size of 0"),
            (Row { times: times(0.0, 0.0, 0.0), ..good.clone() }, "no place"),
            (Row { times: times(1.0, -1.0, 2.0), ..good.clone() }, "no place"),
            (Row { times: times(1e-320, 1e-320, 1e-320), ..good.clone() }, "no place"),
            (Row { times: times(1.0, 2.0, 3.0), ..good.clone() }, "not between"),
            (Row { times: times(f64::INFINITY, 1.0, f64::INFINITY), ..good.clone() }, "no place"),
            (
                Row { bandwidth: Some(Bandwidth { algorithm: -1.0, bus: 1.0 }), ..good.clone() },
                "no bandwidth",
            ),
            (Row { size_of: SizeOf::Ranks, ..good.clone() }, "plot them apart"),
        ] {
            let error = Figure::of(&[file("x.json", vec![good.clone(), bad])]).expect_err(why);
            assert!(error.starts_with("x.json: memory-put a ") && error.contains(why), "{error}");
        }
    }
}
