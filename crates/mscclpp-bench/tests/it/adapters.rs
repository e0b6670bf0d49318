//! Tests of `ib-bw` and `ib-lat`: they run, compare the data that arrives, and compare their times with bare verbs. No time
//! is asserted. They need two RDMA devices; `cargo xtask rdma-vm -p mscclpp-bench -- it adapters::` provides them.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use mscclpp::InfiniBand;
use mscclpp_test_support::{LIMIT, child::output_within};

use super::{
    program::program,
    runs::{column, report, run, variants},
    trial,
};

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

fn bandwidth() -> Result<(), Failed> {
    // These are more rounds than a send queue holds.
    let small = report("ib-bw -b 1 -e 4097 -f 4096 --iters 3000 --repeats 2")?;
    assert_eq!(variants(&small), [["bare verbs", "Connection::write", "SendQueue"]; 3].concat());
    assert_eq!(column(&small, "size"), [[1; 3], [4096; 3], [4097; 3]].concat());
    let mut rows = small["rows"].as_array().into_iter().flatten();
    assert!(rows.all(|row| row["goal"].is_null()), "the goal is of larger messages");

    let large = report("ib-bw --iters 5 --repeats 1 --transports IB1 IB0")?;
    assert_eq!(column(&large, "size"), [65536; 3]);
    let (first, second) = (&large["rows"][0], &large["rows"][1]);
    let (baseline, goal) = (second["baseline"].as_f64(), second["goal"].as_f64());
    assert_eq!(baseline, first["times"]["median"].as_f64());
    assert!((goal.unwrap_or(0.0) * 0.95 / baseline.unwrap_or(0.0) - 1.0).abs() < 1e-9, "{large}");
    Ok(())
}

fn latency() -> Result<(), Failed> {
    let both = report("ib-lat --iters 50 --repeats 2")?;
    let expected = ["host, bare verbs", "host", "host-no-atomic, bare verbs", "host-no-atomic"];
    assert_eq!(variants(&both), expected);
    for [bare, ours] in both["rows"].as_array().ok_or("no rows")?.as_chunks().0 {
        assert_eq!(ours["baseline"], bare["times"]["median"]);
    }
    let one = report("ib-lat --mode host-no-atomic --iters 50 --repeats 1")?;
    assert_eq!(variants(&one), expected[2..]);
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
