//! Tests of the collectives, and of the table of protocols.

use std::process::Command;

use libtest_mimic::Failed;
use mscclpp_test_support::{LIMIT, child::output_within};

use super::{
    program::program,
    runs::{column, notes, report, variants},
};

pub(crate) fn collectives() -> Result<(), Failed> {
    const SIZES: &str = "-b 4 -e 20000 -f 50 --calls 3 --iters 6 --repeats 2";
    const SHAPES: &str = "--protocols ll16,ll128,simple --blocks 1,3 --threads 64";
    for (workload, bus) in
        [("all-reduce", 1.0), ("all-gather", 0.5), ("reduce-scatter", 0.5), ("all-to-all", 0.5)]
    {
        let report = report(format!("{workload} {SIZES} {SHAPES}"))?;
        assert_eq!(variants(&report)[..8], [["ll16 1x64"; 4], ["ll16 3x64"; 4]].concat());
        assert_eq!(variants(&report)[20..], ["simple 3x64"; 4]);
        assert_eq!(column(&report, "size")[..4], [4, 200, 10_000, 20_000]);
        let bandwidth = &report["rows"][3]["bandwidth"];
        let [algorithm, on_the_bus] =
            ["algorithm", "bus"].map(|which| bandwidth[which].as_f64().unwrap_or(0.0));
        assert!((on_the_bus / algorithm - bus).abs() < 1e-9, "{bandwidth}");
    }
    let registered = "--registered --protocols direct,bulk --blocks 2 --threads 64";
    for (workload, protocols) in
        [("all-gather", ["direct 2x64", "bulk 2x64"]), ("all-reduce", ["simple 2x64", "simple 2x64"])]
    {
        let report = report(format!("{workload} {SIZES} {registered}"))?;
        assert_eq!(variants(&report), [[protocols[0]; 4], [protocols[1]; 4]].concat());
    }
    // There are three ranks, each a process. More than two reduce large messages in two steps.
    let three =
        "--ranks 3 -b 12 -e 6000000 -f 500000 --calls 2 --iters 2 --protocols simple --blocks 2 --threads 64";
    for (workload, protocols) in [
        ("all-reduce", ["simple 2x64", "simple, two steps, 2x64"]),
        ("all-to-all", ["simple 2x64", "simple 2x64"]),
    ] {
        let report = report(format!("{workload} {three}"))?;
        assert_eq!(variants(&report), protocols);
        assert_eq!(report["machine"]["devices"].as_array().map(Vec::len), Some(3), "{report}");
    }
    Ok(())
}

/// Makes more launches than a stream holds. A driver then waits until the first are complete, which wait for a rank that has
/// not begun yet.
pub(crate) fn many_launches() -> Result<(), Failed> {
    let one = "-b 1K -e 1K --iters 1500 --warmup 0 --repeats 1";
    for how in ["--symmetric --place in --protocols copy-engine --calls 20", "--eager"] {
        let report = report(format!("all-gather {one} {how}"))?;
        assert_eq!(column(&report, "rounds"), [1500]);
    }
    Ok(())
}

/// More than can be done in a second: each of two ranks sends 1 GiB, by the threads of simulated devices, and reduces as
/// much. Whether the rest is over soon after the abort, or the process ends without it, depends on the machine.
pub(crate) fn too_long() -> Result<(), Failed> {
    let long = ["-b", "8M", "-e", "8M", "--calls", "128", "--iters", "128", "--limit", "1"];
    let mut program = Command::new(program());
    let output =
        output_within(5 * LIMIT, program.arg("all-reduce").args(long).env("MSCCLPP_PLATFORM", "sim"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("did not finish within 1s; check "), "{said}");
    Ok(())
}

/// `tune` reports the best of each size and kind, or all; and a table with all of them.
pub(crate) fn tune() -> Result<(), Failed> {
    let small = "tune -b 256 -e 4K -f 16 --calls 2 --iters 2 --repeats 1";
    let few = "--kinds all-reduce,reduce-scatter,all-gather --blocks 1,2 --threads 32";
    let best = report(format!("{small} {few}"))?;
    assert_eq!(column(&best, "size"), [[256; 3], [4096; 3]].concat());
    assert!(notes(&best)[0].ends_with("for 6 of 6 combinations of kind and size"), "{best}");
    let text = best["text"].as_str().unwrap_or_default();
    for part in
        ["commit c0ffee", "Table {", "    all_reduce: &[", "    reduce_scatter: &[", "    exchange: &["]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("(u64::MAX, Protocol::").count(), 3, "{text}");
    let protocols = "--all --kinds all-to-all --protocols ll16,simple --blocks 1 --threads 32,64";
    let all = report(format!("{small} {protocols}"))?;
    assert_eq!(column(&all, "size"), [256, 256, 4096, 4096]);
    assert_eq!(column(&all, "blocks"), [1; 4]);
    assert_eq!(variants(&all), ["ll16 1x32", "ll16 1x64", "ll16 1x32", "ll16 1x64"]);
    let three = "tune --ranks 3 --all --kinds all-reduce --protocols simple --blocks 1 --threads 32";
    let of_three = report(format!("{three} -b 192K -e 192K --calls 1 --iters 1 --repeats 1"))?;
    assert_eq!(variants(&of_three), ["simple 1x32", "simple, two steps, 1x32"]);
    // The quick run has as many sizes as a run without options; on GPUs it has larger messages, too.
    let quick = report("tune --quick --iters 1 --calls 1")?;
    assert!(column(&quick, "size").len() >= 9, "{quick}");
    Ok(())
}

pub(crate) fn all_reduce_rmsnorm() -> Result<(), Failed> {
    let report = report("all-reduce-rmsnorm --rows 1,3 --hidden 264 --calls 3 --iters 6 --repeats 2")?;
    assert_eq!(column(&report, "size"), [[528; 4], [1584; 4]].concat());
    let variants = variants(&report);
    for (variant, name) in variants.iter().zip(["all-reduce", "two-launches", "fused", "fused-fp8"].repeat(2))
    {
        assert!(variant.starts_with(&format!("{name} ")), "{variants:?}");
    }
    assert!(variants[6].contains("3 rows, ll128 3x"), "{variants:?}");
    Ok(())
}

/// Where there are fewer experts than choices, the other choices are none.
pub(crate) fn few_experts() -> Result<(), Failed> {
    let shape = "experts --experts 4 --top-k 8 --tokens 1,3 --hidden 64 --calls 2 --iters 2 --repeats 1";
    for how in [
        "--layouts rank,token,expert,flat",
        "--layouts expert,flat --exact",
        "--layouts rank,token --ranks 3 --skewed --halves --blocks 2 --bf16",
    ] {
        let report = report(format!("{shape} {how}"))?;
        assert!(variants(&report).len() >= 8, "{report}");
    }
    Ok(())
}
