//! Reads tables printed by nccl-tests as reports, so that one picture shows them beside rows of this program.

use crate::{
    machine::Machine,
    report::{Bandwidth, Report, Row, SizeOf, Times},
};

/// Reads the output of one of nccl-tests: a series each for `out-of-place` and `in-place`.
///
/// # Errors
/// A line that does not have the form of such a table.
pub(super) fn parse(text: &str) -> Result<Report, String> {
    // The number of titles, and the positions of the times.
    let mut columns: Option<(usize, Vec<usize>)> = None;
    let mut workload = "nccl-tests";
    let (mut devices, mut all) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.trim_start_matches('#').split_whitespace().collect();
        if !line.trim_start().starts_with('#') {
            let Some((count, times)) = &columns else { continue };
            // The lines of other programs may follow the table.
            if words.first().is_some_and(|word| word.bytes().all(|c| c.is_ascii_digit())) {
                let read = match words.len() {
                    it if it == *count => rows(workload, &words, times),
                    it => Err(format!("{it} words under {count} titles")),
                };
                all.extend(read.map_err(|why| format!("line {number}: {why}: {}", line.trim()))?);
            }
        } else if words.starts_with(&["size", "count"]) {
            let times = times_of(&words).map_err(|why| format!("line {number}: {why}"))?;
            columns = Some((words.len(), times));
        } else if let Some(("Collective test starting", name)) =
            line.trim_start_matches(['#', ' ']).split_once(": ")
        {
            workload = name.trim();
        } else if words.first() == Some(&"Rank") {
            // The name stands after the bus id, which is in brackets.
            devices.extend(line.split_once(']').map(|(_, name)| name.trim().to_owned()));
        }
    }
    if columns.is_none() {
        return Err("it has no line with the titles size, count and time".to_owned());
    }
    let machine = Machine {
        platform: "cuda".to_owned(),
        devices,
        driver: "unknown".to_owned(),
        transport: "nccl-tests".to_owned(),
        commit: "unknown".to_owned(),
        cores: 0,
    };
    Ok(Report::new(machine, all, Vec::new()))
}

/// The positions of the times in a line. Both bandwidths and the number of wrong elements follow each.
fn times_of(titles: &[&str]) -> Result<Vec<usize>, String> {
    let times: Vec<usize> = (0..titles.len()).filter(|&at| titles[at] == "time").collect();
    let whole =
        |&at: &usize| titles.get(at + 1..at + 3) == Some(&["algbw", "busbw"]) && at + 3 < titles.len();
    match &times[..] {
        [] => Err("there is no time among the titles".to_owned()),
        all if !all.iter().all(whole) => {
            Err("behind a time, algbw, busbw and #wrong or error are due".to_owned())
        }
        _ => Ok(times),
    }
}

/// The rows of a line, which begins with a size in bytes and has `times` in microseconds. None for messages of no bytes.
fn rows(workload: &str, words: &[&str], times: &[usize]) -> Result<Vec<Row>, String> {
    let size: u64 = words[0].parse().map_err(|_| format!("{} is no size", words[0]))?;
    let kinds = ["out-of-place", "in-place"].iter().zip(times).filter(|_| size > 0);
    kinds.map(|(variant, &at)| row(workload, variant, size, &words[at..at + 4])).collect()
}

/// The row of the words time, algbw, busbw and #wrong (or error).
fn row(workload: &str, variant: &str, size: u64, words: &[&str]) -> Result<Row, String> {
    let number = |word: &str| word.parse::<f64>().map_err(|_| format!("{word} is no number"));
    let (us, algorithm, bus) = (number(words[0])?, number(words[1])?, number(words[2])?);
    // The word is not a number if nothing was checked.
    let right = words[3].parse::<f64>().is_ok_and(|wrong| wrong == 0.0) || words[3] == "N/A";
    let times = right.then_some(Times { median: us, min: us, max: us });
    let row = Row { repeats: 1, ..Row::new(workload, variant, (size, SizeOf::Bytes), 1) }.with(times, None);
    Ok(Row { bandwidth: right.then_some(Bandwidth { algorithm, bus }), ..row })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 8(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node1 device  0 [0x0f] A GPU of some kind
#  Rank  1 Group  0 Pid   4711 on      node1 device  1 [0x2d] A GPU of some kind
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.50    0.00    0.00      0     0.50    0.00    0.00      0
           8             2     float     sum      -1    10.25    0.01    0.02      0    11.50    0.02    0.03    N/A
          64            16     float     sum      -1    12.00    0.05    0.05      3    13.00    0.05    0.05      0
# Out of bounds values : 1 FAILED
# Avg bus bandwidth    : 0.04
#
";

    #[test]
    fn a_table_is_two_series() {
        let Report { machine, rows, .. } = parse(TABLE).expect("a table");
        assert_eq!(machine.devices, ["A GPU of some kind"; 2]);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (&row.variant[..], row.size, row.times.map(|times| times.median)))
            .collect();
        assert_eq!(
            seen,
            [
                ("out-of-place", 8, Some(10.25)),
                ("in-place", 8, Some(11.5)),
                ("out-of-place", 64, None),
                ("in-place", 64, Some(13.0)),
            ],
            "what was wrong has no time, and a message of no bytes no row"
        );
        assert_eq!(rows[1].bandwidth, Some(Bandwidth { algorithm: 0.02, bus: 0.03 }));
        assert_eq!(rows[0].workload, "nccl-tests");
        let named = format!("# Collective test starting: all_gather_perf\n{TABLE}");
        assert_eq!(parse(&named).expect("a table").rows[0].workload, "all_gather_perf");
    }

    #[test]
    fn what_is_no_such_table_is_said_by_line() {
        let error = parse("hello").expect_err("no table");
        assert!(error.contains("no line with the titles"), "{error}");
        for (changed, to, why) in [
            ("    10.25", "     soon", "line 11: soon is no number"),
            ("      0    11.50", "           11.50", "line 11: 12 words under 13 titles"),
            ("busbw #wrong     time", "#wrong     time", "line 8: behind a time"),
            ("time   algbw", "span   algbw", "line 8: there is no time"),
        ] {
            assert!(TABLE.contains(changed), "{changed}");
            let error = parse(&TABLE.replace(changed, to)).expect_err(why);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
