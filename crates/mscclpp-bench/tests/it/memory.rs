//! Tests of signals, packets, puts and gets between two devices.

use libtest_mimic::Failed;

use super::runs::{ODD, SHAPE, column, report, variants};

pub(crate) fn signal_pingpong() -> Result<(), Failed> {
    let report = report("signal-pingpong --iters 20 --repeats 2")?;
    let pairs =
        ["release/acquire", "release/acquire, chosen", "bare", "relaxed", "relaxed, chosen", "bare relaxed"];
    assert_eq!(variants(&report), pairs);
    assert_eq!(column(&report, "repeats"), [2, 7, 2, 2, 7, 2], "places, and launches at the chosen one");
    assert_eq!(report["machine"]["devices"].as_array().map(Vec::len), Some(2));
    Ok(())
}

pub(crate) fn relaxed_on_one_device() -> Result<(), Failed> {
    let report = report("signal-pingpong --relaxed --iters 20 --repeats 1 --devices 0 0")?;
    assert_eq!(variants(&report), ["relaxed", "relaxed, chosen", "bare relaxed"]);
    Ok(())
}

pub(crate) fn packet_pingpong() -> Result<(), Failed> {
    for (workload, element) in [("ll8-pingpong", 4), ("ll16-pingpong", 8)] {
        let one = report(format!("{workload} --iters 10 --repeats 2"))?;
        assert_eq!(column(&one, "size"), [element]);
        let many = report(format!("{workload} -b 8 -e 520 -f 4 --iters 5 --repeats 2 --threads 7"))?;
        assert_eq!(column(&many, "size"), [8, 32, 128, 512, 520]);
        assert_eq!(column(&many, "rounds"), [5; 5]);
    }
    Ok(())
}

pub(crate) fn memory_put_and_get() -> Result<(), Failed> {
    for workload in ["memory-put", "memory-get"] {
        let report = report(format!("{workload} {ODD} {SHAPE}"))?;
        assert_eq!(variants(&report)[..3], ["full 3x64"; 3]);
        assert_eq!(variants(&report)[3..], [["half 3x64"; 3], ["none 3x64"; 3]].concat());
        assert_eq!(column(&report, "size"), [[1, 71, 5001]; 3].concat());
        let row = &report["rows"][2];
        let expected = 5001.0 / row["times"]["median"].as_f64().unwrap_or(0.0) / 1e3;
        let bandwidth = row["bandwidth"]["algorithm"].as_f64().unwrap_or(0.0);
        assert!((bandwidth / expected - 1.0).abs() < 1e-9, "{row}");
    }
    for workload in ["memory-put", "memory-get"] {
        let report = report(format!("{workload} {ODD} --bulk --barriers none --blocks 2 --threads 64"))?;
        assert_eq!(variants(&report), [["none 2x64"; 3], ["bulk none 2x32"; 3]].concat());
    }
    // Two ranks share one device, with all options at their defaults.
    let report = report("memory-put -b 64K --repeats 1 --devices 0 0")?;
    // On GPUs, larger sizes follow.
    assert_eq!(column(&report, "size")[0], 64 << 10);
    Ok(())
}

pub(crate) fn memory_put_packets() -> Result<(), Failed> {
    const WORKLOAD: &str = "memory-put-packets --packets ll8,ll16,ll128";
    let report = report(format!("{WORKLOAD} {ODD} {SHAPE}"))?;
    let expected = ["LL8", "LL16", "LL128"].map(|packets| {
        ["full", "half", "none"].map(|barriers| vec![format!("{packets} together {barriers} 3x64"); 3])
    });
    assert_eq!(variants(&report), expected.as_flattened().concat());
    // Some blocks put while others unpack, if several have work.
    let shape = "--barriers half,none --blocks 3 --threads 160 --share 4K";
    for (roles, few, many) in [
        ("--roles together", "together", "together"),
        ("--roles split", "together", "split"),
        ("--roles split --putters 2", "together", "split 2"),
        ("--roles split --putters 1000", "together", "split 2"),
    ] {
        let sizes = "-b 4095 -e 20001 -f 5 --iters 3 --repeats 2";
        let report = self::report(format!("{WORKLOAD} {sizes} {shape} {roles}"))?;
        let expected = ["LL8", "LL16", "LL128"].map(|packets| {
            ["half", "none"]
                .map(|barriers| [few, many].map(|roles| format!("{packets} {roles} {barriers} 3x160")))
        });
        assert_eq!(variants(&report), expected.as_flattened().as_flattened());
    }
    // There are more rounds than a graph has launches: the flags go on from replay to replay.
    let long = "--packets ll16 -b 8 -e 8 --iters 2003 --blocks 1 --warmup 0 --repeats 1";
    let report = self::report(format!("memory-put-packets {long}"))?;
    assert_eq!(column(&report, "rounds"), [2003]);
    Ok(())
}
