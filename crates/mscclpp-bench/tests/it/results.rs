//! Tests of how results and wrong arguments are reported.

use std::{fs, path::Path, process::Command};

use libtest_mimic::Failed;
use mscclpp_test_support::{LIMIT, child::output_within};
use serde_json::Value;

use super::{
    program::program,
    runs::{run, scratch, words},
};

/// Standard output has JSON and nothing else. The commit is that of the checkout, unless the environment names one.
pub(crate) fn json_to_standard_output() -> Result<(), Failed> {
    let small = ["memory-get", "-b", "8", "-e", "8", "--iters", "2", "--repeats", "1", "--json", "-"];
    let mut program = Command::new(program());
    let output = output_within(
        5 * LIMIT,
        program.args(small).env_remove("MSCCLPP_GIT_COMMIT").env_remove("GIT_COMMIT"),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("# commit"), "{said}");
    assert!(!Path::new("-").exists());
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["rows"][0]["check"], "ok");
    // The commit is the build script's, which is also there when the tests are built.
    let commit = option_env!("MSCCLPP_GIT_COMMIT");
    assert_eq!(report["machine"]["commit"], commit.unwrap_or("unknown (set MSCCLPP_GIT_COMMIT)"));
    let is_checkout =
        Command::new("git").args(["rev-parse", "HEAD"]).output().is_ok_and(|git| git.status.success());
    assert!(commit.is_some() || !is_checkout, "built in a checkout without its commit");
    Ok(())
}

/// If one byte is wrong, the row has no times, the table says FAILED and the exit code is that of a failure.
pub(crate) fn wrong_data() -> Result<(), Failed> {
    let path = scratch("spoilt.json");
    const SMALL: &[&str] = &["-e", "1K", "--iters", "2", "--repeats", "1"];
    for (workload, arguments) in [
        ("ll8-pingpong", SMALL),
        ("ll16-pingpong", SMALL),
        ("memory-put", SMALL),
        ("memory-get", SMALL),
        ("memory-put-packets", SMALL),
        ("port-put", SMALL),
        ("port-pingpong", SMALL),
        ("port-packet-pingpong", SMALL),
        ("fifo", &["--iters", "2", "--repeats", "1"]),
        ("proxy-idle", &["--idle", "1", "--window", "1", "--repeats", "1"]),
        ("ethernet-bw", SMALL),
        ("all-reduce", SMALL),
        ("tune", SMALL),
        (
            "experts",
            &["--tokens", "1", "--hidden", "64", "--iters", "2", "--repeats", "1", "--eager", "--halves"],
        ),
        ("experts", &["--tokens", "1", "--hidden", "64", "--iters", "2", "--repeats", "1"]),
        ("all-reduce-rmsnorm", &["--rows", "1", "--hidden", "64", "--iters", "2", "--repeats", "1"]),
    ] {
        let spoilt = ["--spoil", "--json", &path.to_string_lossy()];
        let output = run(&[&[workload], arguments, &spoilt].concat());
        let table = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{workload}: {table}");
        let rows: Vec<_> = table.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| row.ends_with("FAILED")), "{table}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        assert_eq!(report["rows"][0]["check"], "FAILED");
        assert!(report["rows"][0]["times"].is_null() && report["rows"][0]["bandwidth"].is_null(), "{report}");
    }
    let drawn = run(&["plot", &path.to_string_lossy()]);
    let said = String::from_utf8_lossy(&drawn.stderr);
    assert!(drawn.status.code() == Some(1) && said.contains("no row to draw"), "{said}");
    fs::remove_file(&path)?;
    Ok(())
}

/// A run whose rows are plotted, with a shape that does not depend on the device.
const GET: &str = "memory-get -b 8 -e 4K -f 8 --iters 2 --repeats 2 --blocks 4 --threads 32";

pub(crate) fn plot_of_a_table() -> Result<(), Failed> {
    let (measured, table) = (scratch("beside.json"), scratch("nccl.txt"));
    let (json, text) = (measured.to_string_lossy(), table.to_string_lossy());
    let measuring = run(&[&words(GET)[..], &["--json", &json]].concat());
    assert!(measuring.status.success(), "{measuring:?}");
    fs::write(
        &table,
        "#                                                  out-of-place                 in-place
#  size  count  type  redop  root   time  algbw  busbw  #wrong   time  algbw  busbw  #wrong
#   (B)                             (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
     64     16 float    sum    -1  10.25   0.01   0.02       0  11.50   0.02   0.03       0
   4096   1024 float    sum    -1  12.25   0.33   0.66       0  12.50   0.32   0.64       0
",
    )?;
    let drawn = run(&["plot", &json, &text]);
    assert!(drawn.status.success() && drawn.stderr.is_empty(), "{drawn:?}");
    let picture = String::from_utf8(drawn.stdout)?;
    for series in ["memory-get none 4x32", "nccl-tests out-of-place", "nccl-tests in-place"] {
        assert!(picture.contains(series), "{series} is not in {picture}");
    }
    fs::remove_file(&measured)?;
    fs::remove_file(&table)?;
    Ok(())
}

pub(crate) fn plot() -> Result<(), Failed> {
    let (measured, picture) = (scratch("plotted.json"), scratch("plotted.svg"));
    let (json, svg) = (measured.to_string_lossy(), picture.to_string_lossy());
    let measuring = run(&[&words(GET)[..], &["--json", &json]].concat());
    assert!(measuring.status.success(), "{measuring:?}");
    let drawn = run(&["plot", &json, "-o", &svg]);
    assert!(drawn.status.success() && drawn.stdout.is_empty(), "{drawn:?}");
    let to_stdout = run(&["plot", &json]);
    assert!(to_stdout.status.success(), "{to_stdout:?}");
    let text = fs::read(&picture)?;
    assert_eq!(text, to_stdout.stdout);
    let text = String::from_utf8(text)?;
    assert!(text.starts_with("<svg ") && text.contains("memory-get none 4x32\n</text>"), "{text}");
    assert!(text.contains("\n4 KiB\n") && text.contains("GB/s"), "{text}");
    fs::remove_file(&measured)?;
    fs::remove_file(&picture)?;
    Ok(())
}

/// Each malformed file gives an error that names the file and what is wrong with it.
pub(crate) fn malformed_results() -> Result<(), Failed> {
    let path = scratch("malformed.json");
    let text = path.to_string_lossy();
    let row = r#"{"workload": "w", "variant": "v", "size": 8, "size_of": "bytes", "unit": "us", "rounds": 1,
        "repeats": 1, "times": {"median": 1.0, "min": 1.0, "max": 1.0}}"#;
    let report = |rows: &str| {
        format!(
            r#"{{"machine": {{"platform": "sim", "devices": [], "driver": "none", "transport": "CudaIpc",
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
        let output = run(&["plot", &text]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{content}");
        assert!(
            said.contains(&*text) && said.contains(problem) && output.stdout.is_empty(),
            "{content}: {said}"
        );
    }
    fs::write(&path, report(row))?;
    assert!(run(&["plot", &text]).status.success(), "the row that the others were made from");
    fs::remove_file(&path)?;
    let output = run(&["plot", &text]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(&*text), "a file that is not there: {said}");
    Ok(())
}

pub(crate) fn bad_arguments() -> Result<(), Failed> {
    for arguments in [
        &["signal-pingpong", "--iters", "0"][..],
        &["bootstrap", "--ranks", "many"],
        &["no-such-workload"],
        &["memory-put", "-b", "0"],
        &["memory-put", "-e", "1T"],
        &["memory-put", "-f", "1"],
        &["memory-put", "--threads", "33"],
        &["memory-put", "--blocks", "0"],
        &["memory-put", "--barriers", "quarter"],
        &["memory-put", "--packets", "ll16"],
        &["memory-put", "--roles", "split"],
        &["memory-put-packets", "--roles", "apart"],
        &["memory-put-packets", "--packets", "ll4"],
        &["ll8-pingpong", "--blocks", "2"],
        &["ethernet-bw", "--connections", "0"],
        &["ethernet-bw", "--staging", "4"],
        &["port-put", "--transport", "carrier-pigeon"],
        &["fifo", "--threads", "1025"],
        &["all-reduce", "--dtype", "f8"],
        &["all-reduce", "--place", "beside"],
        &["all-reduce", "--ranks", "0"],
        &["tune", "--ranks", "1"],
        &["all-reduce", "--limit", "0"],
        &["tune", "--threads", "33"],
        &["plot"],
        &["plot", "x.json", "--json", "y.json"],
        &["signal-pingpong", "--rank", "0"],
        &["signal-pingpong", "--address", "127.0.0.1:1"],
        &["signal-pingpong", "--gpu", "0"],
        &["fifo", "--rank", "0", "--address", "127.0.0.1:1"],
        &[],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    for (arguments, named) in [
        (&["signal-pingpong", "--devices", "0", "1000"][..], "1000"),
        (&["signal-pingpong", "--devices", "0"], "one for each of 2 ranks"),
        (&["signal-pingpong", "--rank", "2", "--address", "127.0.0.1:1"], "no rank 2 of 2"),
        (&["memory-put", "-b", "2K", "-e", "1K"], "--begin 2048"),
        (&["port-put", "-b", "2K", "-e", "1K"], "--begin 2048"),
        (&["ll16-pingpong", "-b", "12", "-e", "12"], "12 bytes"),
        (&["memory-get", "--barriers", "none", "--blocks", "65"], "64 blocks"),
        (&["memory-put", "--rank", "0", "--address", "nowhere"], "nowhere"),
        (&["ethernet-bw", "--devices", "0", "1"], "--device-memory"),
        (&["fifo", "--fifo-size", "3"], "FIFO of 3"),
        (&["all-reduce", "--ranks", "1", "--rank", "0", "--address", "127.0.0.1:1"], "leave out --rank"),
        (&["all-reduce", "-b", "6", "-e", "6", "--dtype", "f32"], "6 bytes"),
        (&["port-put", "--fifo-size", "8192"], "FIFO of 8192"),
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(named), "{said}");
        // Only one of the two processes prints the error.
        let needs_no_device = ["-b", "--barriers"].iter().any(|option| arguments.contains(option));
        assert!(!needs_no_device || said.lines().count() == 1, "{said}");
    }
    Ok(())
}
