//! That the workloads run, check what they do, and report it. No time is asserted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_mscclpp-bench");

fn main() -> ExitCode {
    // Where only the tests were brought to.
    let missing = !Path::new(PROGRAM).exists();
    let trial = |name: &str, test: fn() -> Result<(), Failed>| {
        let name =
            if missing { format!("{name} (the program is not at {PROGRAM})") } else { name.to_owned() };
        Trial::test(name, test).with_ignored_flag(missing)
    };
    let trials = vec![
        trial("signal_pingpong_has_a_row_for_each_pair", signal_pingpong),
        trial("relaxed_on_one_device", relaxed_on_one_device),
        trial("bootstrap_has_its_phases", bootstrap),
        trial("results_are_plotted", plot),
        trial("what_is_no_result_is_named", malformed_results),
        trial("bad_arguments_are_refused", bad_arguments),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run(arguments: &[&str]) -> Result<Output, Failed> {
    Ok(Command::new(PROGRAM).args(arguments).env("GIT_COMMIT", "c0ffee").output()?)
}

/// A file of this run of the tests.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mscclpp-bench-{}-{name}", std::process::id()))
}

/// The JSON of a run that must succeed.
fn report(name: &str, arguments: &[&str]) -> Result<Value, Failed> {
    let path = scratch(&format!("{name}.json"));
    let output = run(&[arguments, &["--json", &path.to_string_lossy()]].concat())?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = fs::read_to_string(&path)?;
    fs::remove_file(&path)?;
    let report: Value = serde_json::from_str(&text)?;
    assert_eq!(report["machine"]["commit"], "c0ffee");
    for row in report["rows"].as_array().into_iter().flatten() {
        assert!(row["times"]["min"].as_f64() <= row["times"]["median"].as_f64(), "{row}");
        assert!(row["times"]["median"].as_f64() <= row["times"]["max"].as_f64(), "{row}");
    }
    Ok(report)
}

fn variants(report: &Value) -> Vec<&str> {
    report["rows"].as_array().into_iter().flatten().filter_map(|row| row["variant"].as_str()).collect()
}

fn signal_pingpong() -> Result<(), Failed> {
    let report = report("signal", &["signal-pingpong", "--iters", "20", "--repeats", "2"])?;
    assert_eq!(variants(&report), ["release/acquire", "bare", "relaxed", "bare relaxed"]);
    assert_eq!(report["machine"]["devices"].as_array().map(Vec::len), Some(2));
    Ok(())
}

fn relaxed_on_one_device() -> Result<(), Failed> {
    let arguments =
        ["signal-pingpong", "--relaxed", "--iters", "20", "--repeats", "1", "--devices", "0", "0"];
    let report = report("relaxed", &arguments)?;
    assert_eq!(variants(&report), ["relaxed", "bare relaxed"]);
    assert!(report["rows"][0]["goal"].is_null(), "the goal is of two GPUs");
    Ok(())
}

fn bootstrap() -> Result<(), Failed> {
    let report = report("bootstrap", &["bootstrap", "--ranks", "1,5", "--repeats", "2"])?;
    assert_eq!(variants(&report).len(), 8);
    Ok(())
}

fn plot() -> Result<(), Failed> {
    let (measured, picture) = (scratch("plotted.json"), scratch("plotted.svg"));
    let (json, svg) = (measured.to_string_lossy(), picture.to_string_lossy());
    let measuring = run(&["bootstrap", "--ranks", "2,4", "--repeats", "1", "--json", &json])?;
    assert!(measuring.status.success(), "{measuring:?}");
    let drawn = run(&["plot", &json, "-o", &svg])?;
    assert!(drawn.status.success() && drawn.stdout.is_empty(), "{drawn:?}");
    let to_stdout = run(&["plot", &json])?;
    assert!(to_stdout.status.success(), "{to_stdout:?}");
    let text = fs::read(&picture)?;
    assert_eq!(text, to_stdout.stdout);
    let text = String::from_utf8(text)?;
    assert!(text.starts_with("<svg ") && text.contains(">bootstrap barrier</text>"), "{text}");
    fs::remove_file(&measured)?;
    fs::remove_file(&picture)?;
    Ok(())
}

/// Each is an error that names the file and what is wrong with it.
fn malformed_results() -> Result<(), Failed> {
    let path = scratch("malformed.json");
    let text = path.to_string_lossy();
    let row = r#"{"workload": "w", "variant": "v", "size": 8, "size_of": "bytes", "unit": "us", "rounds": 1,
        "repeats": 1, "times": {"median": 1.0, "min": 1.0, "max": 1.0}}"#;
    let report = |rows: &str| {
        format!(
            r#"{{"machine": {{"platform": "host", "devices": [], "driver": "none", "transport": "CudaIpc",
            "commit": "c0ffee", "cores": 2}}, "rows": [{rows}]}}"#
        )
    };
    for (content, problem) in [
        (String::new(), "EOF"),
        ("no json".to_owned(), "line 1"),
        ("{}".to_owned(), "machine"),
        (report(""), "no row"),
        (report(&row.replace("\"us\"", "\"weeks\"")), "weeks"),
        (report(&row.replace("8", "-8")), "-8"),
        (report(&row.replace("8", "0")), "size of 0"),
        (report(&row.replace("\"max\": 1.0", "\"max\": 0.5")), "not between"),
        (report(&row.replace("\"min\": 1.0, ", "")), "min"),
    ] {
        fs::write(&path, &content)?;
        let output = run(&["plot", &text])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{content}");
        assert!(
            said.contains(&*text) && said.contains(problem) && output.stdout.is_empty(),
            "{content}: {said}"
        );
    }
    fs::write(&path, report(row))?;
    assert!(run(&["plot", &text])?.status.success(), "the row that the others were made from");
    fs::remove_file(&path)?;
    let output = run(&["plot", &text])?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(&*text), "a file that is not there: {said}");
    Ok(())
}

fn bad_arguments() -> Result<(), Failed> {
    for arguments in [
        &["signal-pingpong", "--iters", "0"][..],
        &["bootstrap", "--ranks", "many"],
        &["signal-pingpong", "--devices", "0"],
        &["no-such-workload"],
        &["plot"],
        &["plot", "x.json", "--json", "y.json"],
        &[],
    ] {
        let output = run(arguments)?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["signal-pingpong", "--devices", "0", "1000"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("1000"), "{said}");
    Ok(())
}
