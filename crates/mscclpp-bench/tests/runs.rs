//! That the workloads run, check what they do, and report it. No time is asserted.

use std::{
    path::Path,
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
        trial("bad_arguments_are_refused", bad_arguments),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run(arguments: &[&str]) -> Result<Output, Failed> {
    Ok(Command::new(PROGRAM).args(arguments).env("GIT_COMMIT", "c0ffee").output()?)
}

/// The JSON of a run that must succeed.
fn report(name: &str, arguments: &[&str]) -> Result<Value, Failed> {
    let path = std::env::temp_dir().join(format!("mscclpp-bench-{name}-{}.json", std::process::id()));
    let output = run(&[arguments, &["--json", &path.to_string_lossy()]].concat())?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
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

fn bad_arguments() -> Result<(), Failed> {
    for arguments in [
        &["signal-pingpong", "--iters", "0"][..],
        &["bootstrap", "--ranks", "many"],
        &["signal-pingpong", "--devices", "0"],
        &["no-such-workload"],
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
