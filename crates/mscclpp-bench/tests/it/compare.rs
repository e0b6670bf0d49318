//! Tests of collectives beside NCCL: a fake library shows that NCCL is called as its header requires, that its results are
//! checked, and that calls which do not end are errors. No time is asserted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{LIMIT, child::output_within};
use serde_json::Value;
use tempfile::TempDir;

use super::{program::program, runs::said_beside_rows};

const SOURCE: &str = include_str!("fake_nccl.cpp");
const SMALL: &[&str] =
    &["-b", "64", "-e", "6K", "-f", "32", "--calls", "2", "--iters", "4", "--repeats", "2"];

pub(crate) fn trials() -> Vec<Trial> {
    let missing = match (program().exists(), libraries()) {
        (false, _) => Some("the program is not there".to_owned()),
        (true, Err(reason)) => Some(reason.clone()),
        (true, Ok(_)) => None,
    };
    let trial = |name: &str, test: fn() -> Result<(), Failed>| {
        let name = missing.as_ref().map_or_else(|| name.to_owned(), |reason| format!("{name} ({reason})"));
        Trial::test(name, test).with_ignored_flag(missing.is_some())
    };
    vec![
        trial("compare::every_row_stands_beside_nccl", rows),
        trial("compare::numbers_of_every_type_in_place", types_in_place),
        trial("compare::one_rank_is_a_smoke_test", one_rank),
        trial("compare::experts_stand_beside_nccl", experts),
        trial("compare::an_old_nccl_has_no_windows", old),
        trial("compare::multicast_is_off_unless_asked_for", multicast),
        trial("compare::wrong_results_of_nccl_are_seen", wrong),
        trial("compare::windows_that_nccl_refuses_are_left_out", no_window),
        trial("compare::what_nccl_refuses_is_an_error", refused),
        trial("compare::calls_that_do_not_end_are_errors", stuck),
        trial("compare::what_is_no_library_is_named", no_library),
        trial("compare::on_simulated_devices_nccl_is_refused_at_once", on_sim),
    ]
}

/// The fake libraries: one like a new NCCL, one like an old one.
struct Libraries {
    folder: TempDir,
}

impl Libraries {
    fn new() -> Result<Self, String> {
        let folder = TempDir::new().map_err(|error| error.to_string())?;
        let source = folder.path().join("fake_nccl.cpp");
        fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        for (name, flags) in [("new.so", &[][..]), ("old.so", &["-DOLD"])] {
            shared_library(&source, &folder.path().join(name), flags)?;
        }
        Ok(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Compiles a library.
///
/// # Errors
/// If there is no C++ compiler.
pub(crate) fn shared_library(source: &Path, library: &Path, flags: &[&str]) -> Result<(), String> {
    let compilers = ["MSCCLPP_CXX", "CXX"].into_iter().filter_map(std::env::var_os);
    let mut compilers = compilers.chain(["c++", "g++", "clang++"].map(Into::into));
    let output = compilers.find_map(|compiler| {
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o"]);
        command.arg(library).arg(source).args(flags).output().ok()
    });
    let output = output.ok_or("there is no C++ compiler")?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn libraries() -> &'static Result<Libraries, String> {
    static LIBRARIES: OnceLock<Result<Libraries, String>> = OnceLock::new();
    LIBRARIES.get_or_init(Libraries::new)
}

/// The results of a run beside a fake library.
struct Run {
    output: Output,
    report: Option<Value>,
    /// The calls that the fake library has logged.
    log: String,
}

fn run(library: &str, behaviour: &str, arguments: &[&str]) -> Result<Run, Failed> {
    let libraries = libraries().as_ref().map_err(Clone::clone)?;
    let folder = TempDir::new()?;
    let (json, log) = (folder.path().join("rows.json"), folder.path().join("log"));
    let mut command = Command::new(program());
    command.args(arguments).arg("--compare").arg(libraries.path(library)).arg("--json").arg(&json);
    // If somebody has set NCCL's own variable, it would be seen in the log.
    command.env_remove("NCCL_NVLS_ENABLE").env("MSCCLPP_PLATFORM", "sim");
    if let Some((name, value)) = behaviour.split_once('=') {
        command.env(name, value);
    }
    let output = output_within(5 * LIMIT, command.env("FAKE_NCCL", behaviour).env("FAKE_NCCL_LOG", &log));
    let report = fs::read_to_string(&json).ok().and_then(|text| serde_json::from_str(&text).ok());
    Ok(Run { output, report, log: fs::read_to_string(&log).unwrap_or_default() })
}

impl Run {
    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The rows of a run that succeeded and printed nothing on standard error.
    fn rows(&self) -> Vec<Value> {
        assert!(
            self.output.status.success() && said_beside_rows(&self.output.stderr).is_empty(),
            "{:?}",
            self.output
        );
        self.report.as_ref().and_then(|report| report["rows"].as_array()).expect("rows").clone()
    }

    fn notes(&self) -> String {
        self.report.as_ref().map(|report| report["notes"].to_string()).unwrap_or_default()
    }
}

fn median(side: &Value) -> Option<f64> {
    side["times"]["median"].as_f64()
}

fn rows() -> Result<(), Failed> {
    for workload in ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"] {
        let run = run("new.so", "", &[&[workload], SMALL].concat())?;
        let rows = run.rows();
        assert_eq!(rows.len(), 3, "{rows:?}");
        for row in &rows {
            assert_eq!(row["check"], "ok", "{row}");
            assert!(median(&row["nccl"]["plain"]) > Some(0.0), "{row}");
            assert!(median(&row["nccl"]["windows"]) > Some(0.0), "{row}");
            assert!(row["blocks"].as_u64() > Some(0), "{row}");
        }
        let table = String::from_utf8_lossy(&run.output.stdout).into_owned();
        for title in ["per SM", "NCCL", "windows", "ratio"] {
            assert!(table.contains(title), "{title}: {table}");
        }
        assert!(run.notes().contains("version 2.28.9 of ") && run.notes().contains("NCCL_NVLS_ENABLE=0"));
        // Both ranks gave everything back, in the right order.
        assert_eq!(run.log.matches("window of ").count(), 2, "{}", run.log);
        assert_eq!(run.log.matches("destroy with 0 windows").count(), 2, "{}", run.log);
    }
    Ok(())
}

fn types_in_place() -> Result<(), Failed> {
    for (workload, dtype) in [("all-reduce", "f16"), ("reduce-scatter", "bf16"), ("all-gather", "f32")] {
        let more = ["--dtype", dtype, "--place", "out,in"];
        let rows = run("new.so", "", &[&[workload], SMALL, &more].concat())?.rows();
        assert_eq!(rows.len(), 6);
        for (n, row) in rows.iter().enumerate() {
            let in_place = row["variant"].as_str().is_some_and(|variant| variant.ends_with(", in place"));
            assert!(row["check"] == "ok" && in_place == (n >= 3), "{row}");
            assert!(median(&row["nccl"]["plain"]).is_some() && median(&row["nccl"]["windows"]).is_some());
        }
    }
    // NCCL has no all_to_all in place.
    let rows = run("new.so", "", &[&["all-to-all", "--place", "in"], SMALL].concat())?.rows();
    assert!(rows.iter().all(|row| row["check"] == "ok" && row["nccl"]["plain"].is_null()), "{rows:?}");
    Ok(())
}

fn one_rank() -> Result<(), Failed> {
    for workload in ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"] {
        let run = run("new.so", "", &[&[workload, "--ranks", "1", "--place", "out,in"], SMALL].concat())?;
        let devices = run.report.as_ref().map(|report| report["machine"]["devices"].clone());
        assert!(run.rows().iter().all(|row| row["check"] == "ok"), "{workload}");
        assert_eq!(devices.and_then(|it| it.as_array().map(Vec::len)), Some(1));
        assert_eq!(run.log.matches("init 0 of 1, ").count(), 1, "{}", run.log);
    }
    Ok(())
}

fn experts() -> Result<(), Failed> {
    let sizes = ["--tokens", "1,5", "--calls", "2", "--iters", "4", "--repeats", "2"];
    for mode in [&[][..], &["--eager"], &["--bf16", "--layouts", "token"]] {
        let run = run("new.so", "", &[&["experts"], &sizes[..], mode].concat())?;
        let rows = run.rows();
        // A dispatch and a combine for each number of tokens.
        assert_eq!(rows.len(), 4, "{rows:?}");
        for row in &rows {
            assert_eq!(row["check"], "ok", "{row}");
            assert!(median(&row["nccl"]["plain"]) > Some(0.0) && row["nccl"]["windows"].is_null(), "{row}");
        }
        assert!(run.notes().contains("version 2.28.9 of "), "{}", run.notes());
        assert_eq!(run.log.matches("destroy with 0 windows").count(), 2, "{}", run.log);
    }
    Ok(())
}

fn old() -> Result<(), Failed> {
    for workload in ["all-to-all", "all-reduce"] {
        let run = run("old.so", "", &[&[workload], SMALL].concat())?;
        for row in run.rows() {
            assert!(median(&row["nccl"]["plain"]).is_some() && row["nccl"]["windows"].is_null(), "{row}");
        }
        assert!(run.notes().contains("version 2.28.9 has no functions for them"), "{}", run.notes());
    }
    Ok(())
}

fn multicast() -> Result<(), Failed> {
    let short = &["all-reduce", "-b", "64", "-e", "64", "--iters", "2", "--calls", "1", "--repeats", "1"];
    for (behaviour, value) in [("", "0"), ("NCCL_NVLS_ENABLE=2", "2")] {
        let log = run("new.so", behaviour, short)?.log;
        for rank in [0, 1] {
            assert!(log.contains(&format!("init {rank} of 2, NVLS {value}\n")), "{log}");
        }
    }
    Ok(())
}

fn wrong() -> Result<(), Failed> {
    for (behaviour, right) in [("wrong", 0), ("wrong-windows", 1)] {
        let run = run("new.so", behaviour, &[&["all-reduce"], SMALL].concat())?;
        assert_eq!(run.output.status.code(), Some(1), "{:?}", run.output);
        let report = run.report.as_ref().expect("a report");
        for row in report["rows"].as_array().into_iter().flatten() {
            let sides = ["plain", "windows"].map(|side| median(&row["nccl"][side]));
            assert_eq!(sides.iter().flatten().count(), right, "{row}");
            assert!(row["check"] == "NCCL FAILED" && median(row).is_some(), "{row}");
        }
    }
    Ok(())
}

fn no_window() -> Result<(), Failed> {
    let run = run("new.so", "no-window", &[&["all-gather"], SMALL].concat())?;
    assert!(run.rows().iter().all(|row| row["nccl"]["windows"].is_null()));
    assert!(run.notes().contains("no symmetric memory between these devices"), "{}", run.notes());
    Ok(())
}

fn refused() -> Result<(), Failed> {
    let run = run("new.so", "refuse", &[&["all-reduce"], SMALL].concat())?;
    let said = run.said();
    assert_eq!(run.output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("NCCL's ncclAllReduce failed: invalid usage (5): the stand-in was told to;"),
        "{said}"
    );
    Ok(())
}

fn stuck() -> Result<(), Failed> {
    for (behaviour, call) in [("stuck", "NCCL (all-reduce)"), ("stuck-init", "ncclCommInitRank")] {
        let run = run("new.so", behaviour, &[&["all-reduce", "--limit", "2"], SMALL].concat())?;
        let said = run.said();
        assert_eq!(run.output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("error: {call} has not returned within 2 s")), "{said}");
    }
    Ok(())
}

fn no_library() -> Result<(), Failed> {
    let mut command = Command::new(program());
    let output = output_within(LIMIT, command.args(["all-reduce", "--compare", "/nowhere/libnccl.so.2"]));
    let said = String::from_utf8_lossy(&output.stderr);
    // Only one of the two processes prints the error.
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("NCCL cannot be loaded from /nowhere/libnccl.so.2"), "{said}");
    Ok(())
}

fn on_sim() -> Result<(), Failed> {
    let mut command = Command::new(program());
    command.args(["all-reduce", "--compare", "libc.so.6"]).env("MSCCLPP_PLATFORM", "sim");
    let output = output_within(LIMIT, &mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("--compare libc.so.6 needs GPUs"), "{said}");
    Ok(())
}
