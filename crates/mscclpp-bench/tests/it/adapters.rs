//! Tests of `ib-bw` and `ib-lat`: they run, compare the data that arrives, and compare their times with bare verbs. No time
//! is asserted. They need two RDMA devices; `cargo xtask rdma-vm -p mscclpp-bench -- it adapters::` provides them.

use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};
use mscclpp::InfiniBand;
use mscclpp_test_support::{LIMIT, child::output_within};
use serde_json::Value;

use super::{program::program, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let devices = InfiniBand::new().device_names().map_or(0, |names| names.len());
    let with_devices = |name: &str, test: fn() -> Result<(), Failed>| match devices {
        0 | 1 => Trial::test(name, test).with_kind("needs two RDMA devices").with_ignored_flag(true),
        _ => trial(name, test),
    };
    vec![
        with_devices("adapters::puts_stand_beside_bare_verbs", bandwidth),
        with_devices("adapters::round_trips_stand_beside_bare_verbs", latency),
        with_devices("adapters::wrong_data_fails", wrong_data),
        trial("adapters::a_missing_device_is_named", missing_device),
    ]
}

fn run(arguments: &[&str]) -> Output {
    output_within(5 * LIMIT, Command::new(program()).args(arguments))
}

/// The rows of a run that must succeed.
fn rows(name: &str, arguments: &[&str]) -> Result<Vec<Value>, Failed> {
    let path = std::env::temp_dir().join(format!("mscclpp-bench-{}-{name}.json", std::process::id()));
    let output = run(&[arguments, &["--json", &path.to_string_lossy()]].concat());
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    std::fs::remove_file(&path)?;
    let rows = report["rows"].as_array().cloned().unwrap_or_default();
    assert!(rows.iter().all(|row| row["check"] == "ok"), "{report}");
    Ok(rows)
}

fn column<'a>(rows: &'a [Value], name: &str) -> Vec<&'a Value> {
    rows.iter().map(|row| &row[name]).collect()
}

fn bandwidth() -> Result<(), Failed> {
    // These are more rounds than a send queue holds.
    let small = rows(
        "small",
        &["ib-bw", "-b", "1", "-e", "4097", "-f", "4096", "--iters", "3000", "--repeats", "2"],
    )?;
    let variants = ["bare verbs", "Connection::write", "SendQueue"];
    assert_eq!(column(&small, "variant"), [variants; 3].concat());
    assert_eq!(column(&small, "size"), [[1; 3], [4096; 3], [4097; 3]].concat());
    assert!(column(&small, "goal").iter().all(|goal| goal.is_null()), "the goal is of larger messages");

    let large = rows("large", &["ib-bw", "--iters", "5", "--repeats", "1", "--transports", "IB1", "IB0"])?;
    assert_eq!(column(&large, "size"), [65536; 3]);
    let (baseline, goal) = (large[1]["baseline"].as_f64(), large[1]["goal"].as_f64());
    assert_eq!(baseline, large[0]["times"]["median"].as_f64());
    assert!((goal.unwrap_or(0.0) * 0.95 / baseline.unwrap_or(0.0) - 1.0).abs() < 1e-9, "{large:?}");
    Ok(())
}

fn latency() -> Result<(), Failed> {
    let both = rows("both", &["ib-lat", "--iters", "50", "--repeats", "2"])?;
    let variants = ["host, bare verbs", "host", "host-no-atomic, bare verbs", "host-no-atomic"];
    assert_eq!(column(&both, "variant"), variants);
    for [bare, ours] in both.as_chunks().0 {
        assert_eq!(ours["baseline"], bare["times"]["median"]);
    }
    let one = rows("one", &["ib-lat", "--mode", "host-no-atomic", "--iters", "50", "--repeats", "1"])?;
    assert_eq!(column(&one, "variant"), variants[2..]);
    Ok(())
}

fn wrong_data() -> Result<(), Failed> {
    for workload in ["ib-bw", "ib-lat"] {
        let output = run(&[workload, "--iters", "3", "--repeats", "1", "--warmup", "0", "--spoil"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains("FAILED"), "{workload}: {output:?}");
    }
    Ok(())
}

fn missing_device() -> Result<(), Failed> {
    // No machine has this device, and the test also passes where there is no library.
    let mut command = Command::new(program());
    command.args(["ib-bw", "--iters", "1"]).env("MSCCLPP_HCA_DEVICES", "no_such_device");
    let output = output_within(5 * LIMIT, &mut command);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(text.contains("no_such_device") || text.contains("libibverbs"), "{text}");
    Ok(())
}
