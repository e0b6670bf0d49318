//! Tests that `hold` names rows that have become slower, rows that are missing, and figures that cannot be compared. The
//! figures are changed by factors of thousands, so that the test passes on any busy machine.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
    sync::OnceLock,
};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{LIMIT, child::output_within};
use serde_json::{Value, json};

use super::program::program;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn(&Folder) -> Result<(), Failed>| {
        super::trial(&format!("hold::{name}"), move || test(&Folder::new()?))
    };
    vec![
        trial("what_is_as_fast_as_before_holds", holds),
        trial("a_row_that_fell_is_named_with_its_figures", fell),
        trial("without_time_a_slower_row_is_not_repeated_and_counts", not_repeated),
        trial("a_missing_row_is_named", missing_row),
        trial("wrong_results_are_named", wrong),
        trial("figures_of_other_devices_are_refused", other_devices),
        trial("rows_have_goals_in_a_file_that_somebody_wrote", goals),
        trial("the_laboratory_s_figures_are_of_its_own_devices", laboratory),
        trial("another_build_is_measured_in_turns", against),
        trial("a_build_that_cannot_be_run_is_named", against_nothing),
        trial("what_was_measured_is_a_baseline_again", written),
        trial("what_is_no_baseline_is_an_error", no_baseline),
    ]
}

/// A workload of two rows, and their names, which are the same on simulated devices and on GPUs.
const WORKLOAD: &[&str] =
    &["memory-put", "--iters", "2", "--repeats", "1", "--blocks", "1", "--threads", "32"];
const SIZES: &[&str] = &["--begin", "8", "--end", "64", "--factor", "8"];
const ROWS: [&str; 2] = ["memory-put none 1x32, 8 B", "memory-put none 1x32, 64 B"];

/// The folder of one test, which is removed when the test ends.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Result<Self, Failed> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A baseline of this machine's figures, which are measured once, with times that are `factor` times as long.
    fn baseline(&self, factor: f64) -> Result<Value, Failed> {
        static MEASURED: OnceLock<Vec<u8>> = OnceLock::new();
        let measured =
            MEASURED.get_or_init(|| self.run(&[WORKLOAD, SIZES, &["--json", "-"]].concat()).stdout);
        let mut report: Value = serde_json::from_slice(measured)?;
        for row in report["rows"].as_array_mut().into_iter().flatten() {
            for time in ["median", "min", "max"] {
                row["times"][time] = json!(row["times"][time].as_f64().unwrap_or(0.0) * factor);
            }
        }
        Ok(report)
    }

    fn write(&self, report: &Value) -> Result<String, Failed> {
        let path = self.path("baseline.json");
        fs::write(&path, report.to_string())?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// Runs `hold` with the baseline in a file.
    fn hold(&self, report: &Value, more: &[&str]) -> Result<Held, Failed> {
        let path = self.write(report)?;
        Ok(Held::of(&self.run(&[&["hold", "--baseline", &path], more].concat())))
    }

    /// Runs the program in the folder, which has nothing of the repository.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut program = Command::new(program());
        output_within(5 * LIMIT, program.args(arguments).current_dir(self.0.path()))
    }

    /// The path of a program that prints `report` for any arguments.
    fn program(&self, report: &Value) -> Result<String, Failed> {
        let json = self.path("other.json");
        fs::write(&json, report.to_string())?;
        self.script("other", &format!("exec cat {}", json.display()))
    }

    /// The path of a program that runs a line of the shell.
    fn script(&self, name: &str, line: &str) -> Result<String, Failed> {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path.to_string_lossy().into_owned())
    }
}

/// The exit code and output of `hold`.
#[derive(Debug)]
struct Held {
    code: Option<i32>,
    table: String,
    errors: String,
}

impl Held {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), table: text(&output.stdout), errors: text(&output.stderr) }
    }

    /// The sentence about a row below the table.
    fn named(&self, row: &str) -> Option<&str> {
        self.table.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(": "))
    }
}

const WIDE: &[&str] = &["--tolerance", "100000"];

fn holds(folder: &Folder) -> Result<(), Failed> {
    let held = folder.hold(&folder.baseline(1e6)?, &[])?;
    assert_eq!(held.code, Some(0), "{held:?}");
    assert_eq!(held.table.matches(" faster\n").count(), 2, "{held:?}");
    assert!(held.table.contains("2 of 2 rows hold, within 3 %"), "{held:?}");
    let call = [WORKLOAD, SIZES].concat();
    let said = held.errors.split(',').next().and_then(|turn| turn.strip_prefix("turn 1: memory-put "));
    let words: Vec<&str> = said.unwrap_or_default().split(' ').collect();
    for pair in words.chunks(2) {
        assert!(call.windows(2).any(|given| given == pair), "{pair:?} of {held:?}");
    }
    assert_eq!(held.errors.lines().count(), 1, "what is not slower is not repeated: {held:?}");
    let wide = folder.hold(&folder.baseline(1.0)?, WIDE)?;
    assert!(wide.code == Some(0) && wide.table.contains("2 of 2 rows hold, within 100000 %"), "{wide:?}");
    Ok(())
}

fn fell(folder: &Folder) -> Result<(), Failed> {
    let mut report = folder.baseline(1e-6)?;
    // Only one of the two rows has become slower.
    let median = json!(report["rows"][1]["times"]["median"].as_f64().unwrap_or(0.0) * 1e12);
    report["rows"][1]["times"] = json!({"median": median, "min": median, "max": median});
    let held = folder.hold(&report, &["--turns", "3"])?;
    assert_eq!(held.code, Some(1), "{held:?}");
    let said = held.named(ROWS[0]).unwrap_or_default();
    assert!(said.contains(" us before, ") && said.contains(" us now: "), "{held:?}");
    assert!(said.contains(" % more (the median of 3 turns, noise "), "{held:?}");
    assert!(held.named(ROWS[1]).is_none() && held.table.contains("1 of 2 rows hold"), "{held:?}");
    assert_eq!(held.errors.lines().count(), 3, "{held:?}");
    Ok(())
}

/// The second turn does not begin, because the first took longer than the limit: the other program sleeps.
fn not_repeated(folder: &Folder) -> Result<(), Failed> {
    let fast = folder.baseline(1e-6)?;
    let sleeps = folder.script("sleeps", &format!("sleep 2; exec {}", folder.program(&fast)?))?;
    let held = folder.hold(&fast, &["--limit", "1", "--against", &sleeps])?;
    assert_eq!((held.code, held.errors.lines().count()), (Some(1), 1), "{held:?}");
    for row in ROWS {
        let said = held.named(row).unwrap_or_default();
        assert!(said.contains("measured once: there was no time left"), "{held:?}");
    }
    Ok(())
}

fn missing_row(folder: &Folder) -> Result<(), Failed> {
    let mut report = folder.baseline(1.0)?;
    report["rows"][0]["variant"] = json!("three-quarters 1x32");
    let held = folder.hold(&report, WIDE)?;
    assert_eq!(held.code, Some(1), "{held:?}");
    let said = held.named("memory-put three-quarters 1x32, 8 B").unwrap_or_default();
    assert!(said.starts_with("missing") && held.table.contains("1 of 2 rows hold"), "{held:?}");
    Ok(())
}

fn wrong(folder: &Folder) -> Result<(), Failed> {
    let mut report = folder.baseline(1.0)?;
    report["arguments"].as_array_mut().ok_or("no arguments")?.push(json!("--spoil"));
    let held = folder.hold(&report, WIDE)?;
    assert_eq!(held.code, Some(1), "{held:?}");
    for row in ROWS {
        assert_eq!(held.named(row), Some("the results were wrong"), "{held:?}");
    }
    Ok(())
}

fn other_devices(folder: &Folder) -> Result<(), Failed> {
    let mut report = folder.baseline(1.0)?;
    report["machine"]["devices"] = json!(["A GPU of another kind", "A GPU of another kind"]);
    report["machine"]["driver"] = json!("1.2.3");
    let held = folder.hold(&report, WIDE)?;
    assert_eq!(held.code, Some(1), "{held:?}");
    let (devices, remedies) =
        ("2 x A GPU of another kind, and here are", ["--write", "--against", "--other-hardware"]);
    assert!(held.errors.contains(devices) && remedies.iter().all(|it| held.errors.contains(it)), "{held:?}");
    assert!(held.table.is_empty(), "{held:?}");
    let held = folder.hold(&report, &[WIDE, &["--other-hardware"]].concat())?;
    assert_eq!(held.code, Some(0), "{held:?}");
    assert!(held.table.contains("# the drivers are not the same: 1.2.3 before, "), "{held:?}");
    Ok(())
}

/// A row of a goal alone is measured and compared with nothing; a baseline is compared like an earlier figure.
fn goals(folder: &Folder) -> Result<(), Failed> {
    let mut report = folder.baseline(1.0)?;
    let row = |size: u64| json!({"workload": "memory-put", "variant": "none 1x32", "size": size});
    report["rows"] = json!([row(8), row(64)]);
    report["rows"][0]["goal"] = json!(1e12);
    report["rows"][1]["baseline"] = json!(1e12);
    report["rows"][1]["goal"] = json!(1e-9);
    let held = folder.hold(&report, &[])?;
    assert_eq!(held.code, Some(0), "a goal that is not reached is no row that fell: {held:?}");
    assert!(held.table.contains("1 of 2 goals are reached\n2 of 2 rows hold"), "{held:?}");
    let line = |row: &str| held.table.lines().find(|line| line.contains(row)).unwrap_or_default();
    assert!(line(ROWS[0]).ends_with("1000000000000.000  measured"), "{held:?}");
    assert!(line(ROWS[1]).ends_with("0.000000  faster"), "{held:?}");
    report["rows"][1]["baseline"] = json!(1e-9);
    let held = folder.hold(&report, &["--turns", "2"])?;
    assert!(held.code == Some(1) && held.named(ROWS[1]).is_some(), "{held:?}");
    Ok(())
}

/// The calls of the repository's file can be made, and its figures are refused on other devices.
fn laboratory(folder: &Folder) -> Result<(), Failed> {
    let path = folder.path("two-h200.json");
    fs::write(&path, include_str!("../../../../ci/two-h200.json"))?;
    let mut program = Command::new(program());
    program.args(["hold", "--baseline"]).arg(&path).env("MSCCLPP_PLATFORM", "sim");
    let held = Held::of(&output_within(5 * LIMIT, &mut program));
    assert!(held.code == Some(1) && held.table.is_empty(), "{held:?}");
    assert!(
        held.errors.contains("signal-pingpong was measured on cuda, 2 x NVIDIA H200, and here are sim"),
        "{held:?}"
    );
    Ok(())
}

/// The figures of the other program count, and not those in the file.
fn against(folder: &Folder) -> Result<(), Failed> {
    let in_file = folder.baseline(1e-6)?;
    let slow = folder.program(&folder.baseline(1e6)?)?;
    let held = folder.hold(&in_file, &["--against", &slow])?;
    assert_eq!(held.code, Some(0), "{held:?}");
    let fast = folder.program(&folder.baseline(1e-6)?)?;
    let held = folder.hold(&folder.baseline(1e6)?, &["--against", &fast, "--turns", "2"])?;
    assert_eq!(held.code, Some(1), "{held:?}");
    assert!(ROWS.iter().all(|row| held.named(row).is_some_and(|it| it.contains("2 turns"))), "{held:?}");
    let held = folder.hold(&in_file, &[WIDE, &["--against", &program().to_string_lossy()]].concat())?;
    assert_eq!(held.code, Some(0), "this program itself: {held:?}");
    Ok(())
}

fn against_nothing(folder: &Folder) -> Result<(), Failed> {
    let report = folder.baseline(1.0)?;
    let held = folder.hold(&report, &[WIDE, &["--against", "/no/such/program"]].concat())?;
    assert_eq!(held.code, Some(1), "{held:?}");
    assert!(held.table.contains("/no/such/program memory-put "), "{held:?}");
    let fails = folder.script("fails", "echo it has no such workload >&2; exit 2")?;
    let held = folder.hold(&report, &[WIDE, &["--against", &fails]].concat())?;
    assert_eq!(held.code, Some(1), "{held:?}");
    assert!(held.table.contains("exit status: 2; it said: it has no such workload"), "{held:?}");
    Ok(())
}

fn written(folder: &Folder) -> Result<(), Failed> {
    let again = folder.path("again.json").to_string_lossy().into_owned();
    let held = folder.hold(&folder.baseline(1.0)?, &[WIDE, &["--write", &again]].concat())?;
    assert_eq!(held.code, Some(0), "{held:?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&again)?)?;
    assert_eq!(report["reports"].as_array().map(Vec::len), Some(1), "{report}");
    let held = folder.hold(&report, WIDE)?;
    assert!(held.code == Some(0) && held.table.contains("2 of 2 rows hold"), "{held:?}");
    // Several reports of one command are its turns.
    let once = report["reports"][0].clone();
    let held = folder.hold(&json!({"reports": [once, once, once]}), WIDE)?;
    assert!(held.table.contains("2 of 2 rows hold") && held.errors.lines().count() == 1, "{held:?}");
    let held = Held::of(&folder.run(&["hold", "--write", "/no/such/folder/x.json"]));
    assert!(held.code == Some(1) && held.errors.contains("/no/such/folder/x.json"), "{held:?}");
    Ok(())
}

fn no_baseline(folder: &Folder) -> Result<(), Failed> {
    let good = folder.baseline(1.0)?;
    let changed = |change: fn(&mut Value)| {
        let mut report = good.clone();
        change(&mut report);
        report
    };
    for (report, problem) in [
        (json!({}), "no result file"),
        (json!({"reports": []}), "no result in it"),
        (json!({"reports": [{}]}), "no result file"),
        (changed(|it| it["rows"] = json!([])), "without a row"),
        (
            changed(|it| it["arguments"] = json!([])),
            "does not say with which options memory-put was measured",
        ),
        (changed(|it| it["arguments"] = json!(["plot", "x.json"])), "measures nothing"),
        (changed(|it| it["arguments"] = json!(["memory-put", "--json", "x"])), "--json has no place"),
        (changed(|it| it["arguments"] = json!(["memory-pot"])), "memory-pot"),
        (changed(|it| it["rows"][0]["times"] = Value::Null), "was wrong when it was measured"),
    ] {
        let held = folder.hold(&report, &[])?;
        assert!(held.code == Some(1) && held.errors.contains(problem), "{problem}: {held:?}");
        assert!(held.errors.contains("baseline.json") && held.table.is_empty(), "{held:?}");
    }
    for (arguments, code) in [
        (&["hold"][..], 2),
        (&["hold", "--baseline", "nothing.json"], 1),
        (&["hold", "--baseline", "x.json", "--tolerance", "-1"], 2),
        (&["hold", "--baseline", "x.json", "--turns", "1"], 2),
    ] {
        assert_eq!(folder.run(arguments).status.code(), Some(code), "{arguments:?}");
    }
    fs::write(folder.path("text.json"), "no json")?;
    let held = Held::of(&folder.run(&["hold", "--baseline", "text.json"]));
    assert!(held.code == Some(1) && held.errors.contains("text.json"), "{held:?}");
    Ok(())
}
