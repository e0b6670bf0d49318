//! The workloads run, check what they do, and report it. No time is asserted.

#[path = "support/program.rs"]
mod program;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_test_support::{LIMIT, child::output_within, reserve_port};
use program::program;
use serde_json::Value;

fn main() -> ExitCode {
    // Where only the tests were brought to.
    let missing = !program().exists();
    let trial = |name: &str, test: fn() -> Result<(), Failed>| {
        let name = if missing { format!("{name} (the program is not there)") } else { name.to_owned() };
        Trial::test(name, test).with_ignored_flag(missing)
    };
    let trials = vec![
        trial("signal_pingpong_has_a_row_for_each_pair", signal_pingpong),
        trial("relaxed_on_one_device", relaxed_on_one_device),
        trial("packets_go_back_and_forth", packet_pingpong),
        trial("memory_is_put_and_got_with_every_kind_of_barriers", memory_put_and_get),
        trial("packets_of_every_kind_are_put", memory_put_packets),
        trial("collectives_have_rows_like_those_of_nccl_tests", collectives),
        trial("collectives_that_do_not_end_are_an_error", too_long),
        trial("tuning_gives_a_table", tune),
        trial("all_reduce_rmsnorm_has_rows_for_one_launch_and_two", all_reduce_rmsnorm),
        trial("wrong_data_fails", wrong_data),
        trial("json_goes_to_standard_output_alone", json_to_standard_output),
        trial("ports_put_small_and_large", port_put),
        trial("ports_go_back_and_forth", port_pingpong),
        trial("packets_of_ports_go_back_and_forth", port_packet_pingpong),
        trial("a_fifo_takes_triggers_of_any_number_of_threads", fifo),
        trial("launches_stand_beside_the_drivers_own", launches),
        trial("an_idle_proxy_is_measured", proxy_idle),
        trial("puts_over_ethernet_stand_beside_a_plain_socket", ethernet_bw),
        trial("bootstrap_has_its_phases", bootstrap),
        trial("ranks_that_are_started_apart_find_each_other", ranks_by_hand),
        trial("ranks_that_are_started_differently_stop_at_once", ranks_that_differ),
        trial("results_are_plotted", plot),
        trial("tables_of_nccl_tests_are_plotted_beside_results", plot_of_a_table),
        trial("what_is_no_result_is_named", malformed_results),
        trial("bad_arguments_are_refused", bad_arguments),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run(arguments: &[&str]) -> Output {
    output_within(5 * LIMIT, Command::new(program()).args(arguments).env("MSCCLPP_GIT_COMMIT", "c0ffee"))
}

/// A file of this run of the tests.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mscclpp-bench-{}-{name}", std::process::id()))
}

/// The JSON of a run that must succeed.
fn report(name: &str, arguments: &[&str]) -> Result<Value, Failed> {
    let path = scratch(&format!("{name}.json"));
    let output = run(&[arguments, &["--json", &path.to_string_lossy()]].concat());
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    // Not a terminal: nothing was drawn on it.
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&path)?;
    fs::remove_file(&path)?;
    let report: Value = serde_json::from_str(&text)?;
    assert_eq!(report["machine"]["commit"], "c0ffee");
    for row in report["rows"].as_array().into_iter().flatten() {
        assert_eq!(row["check"], "ok", "{row}");
        assert!(row["times"]["min"].as_f64() <= row["times"]["median"].as_f64(), "{row}");
        assert!(row["times"]["median"].as_f64() <= row["times"]["max"].as_f64(), "{row}");
    }
    Ok(report)
}

fn variants(report: &Value) -> Vec<&str> {
    report["rows"].as_array().into_iter().flatten().filter_map(|row| row["variant"].as_str()).collect()
}

fn column(report: &Value, name: &str) -> Vec<u64> {
    report["rows"].as_array().into_iter().flatten().filter_map(|row| row[name].as_u64()).collect()
}

fn signal_pingpong() -> Result<(), Failed> {
    let report = report("signal", &["signal-pingpong", "--iters", "20", "--repeats", "2"])?;
    let pairs =
        ["release/acquire", "release/acquire, chosen", "bare", "relaxed", "relaxed, chosen", "bare relaxed"];
    assert_eq!(variants(&report), pairs);
    assert_eq!(column(&report, "repeats"), [2, 7, 2, 2, 7, 2], "places, and launches at the chosen one");
    assert_eq!(report["machine"]["devices"].as_array().map(Vec::len), Some(2));
    Ok(())
}

fn relaxed_on_one_device() -> Result<(), Failed> {
    let arguments =
        ["signal-pingpong", "--relaxed", "--iters", "20", "--repeats", "1", "--devices", "0", "0"];
    let report = report("relaxed", &arguments)?;
    assert_eq!(variants(&report), ["relaxed", "relaxed, chosen", "bare relaxed"]);
    assert!(report["rows"][0]["goal"].is_null(), "the goal is of two GPUs");
    Ok(())
}

fn packet_pingpong() -> Result<(), Failed> {
    for (workload, element) in [("ll8-pingpong", 4), ("ll16-pingpong", 8)] {
        let one = report(workload, &[workload, "--iters", "10", "--repeats", "2"])?;
        assert_eq!(column(&one, "size"), [element]);
        let arguments =
            ["-b", "8", "-e", "520", "-f", "4", "--iters", "5", "--repeats", "2", "--threads", "7"];
        let many = report(workload, &[&[workload][..], &arguments].concat())?;
        assert_eq!(column(&many, "size"), [8, 32, 128, 512, 520]);
        assert_eq!(column(&many, "rounds"), [5; 5]);
    }
    Ok(())
}

/// Sizes that are no multiple of anything, shared by few threads or many.
const ODD: &[&str] =
    &["-b", "1", "-e", "5001", "-f", "71", "--iters", "3", "--warmup", "1", "--repeats", "2"];
const SHAPE: &[&str] =
    &["--barriers", "full,half,none", "--blocks", "3", "--threads", "64", "--share", "100"];

fn memory_put_and_get() -> Result<(), Failed> {
    for workload in ["memory-put", "memory-get"] {
        let report = report(workload, &[&[workload], ODD, SHAPE].concat())?;
        assert_eq!(variants(&report)[..3], ["full 3x64"; 3]);
        assert_eq!(variants(&report)[3..], [["half 3x64"; 3], ["none 3x64"; 3]].concat());
        assert_eq!(column(&report, "size"), [[1, 71, 5001]; 3].concat());
        let row = &report["rows"][2];
        let expected = 5001.0 / row["times"]["median"].as_f64().unwrap_or(0.0) / 1e3;
        let bandwidth = row["bandwidth"]["algorithm"].as_f64().unwrap_or(0.0);
        assert!((bandwidth / expected - 1.0).abs() < 1e-9, "{row}");
        assert!(row["goal"].is_null() && row["baseline"].is_null(), "the figures are of two GPUs: {row}");
    }
    for workload in ["memory-put", "memory-get"] {
        let bulk: &[&str] = &["--bulk", "--barriers", "none", "--blocks", "2", "--threads", "64"];
        let report = report(&format!("{workload}-bulk"), &[&[workload], ODD, bulk].concat())?;
        assert_eq!(variants(&report), [["none 2x64"; 3], ["bulk none 2x32"; 3]].concat());
    }
    // Two ranks on one device, with the defaults of everything that has one.
    let report =
        report("memory-put-one", &["memory-put", "-b", "64K", "--repeats", "1", "--devices", "0", "0"])?;
    assert_eq!(column(&report, "size"), [64 << 10]);
    Ok(())
}

fn collectives() -> Result<(), Failed> {
    const SIZES: &[&str] =
        &["-b", "4", "-e", "20000", "-f", "50", "--calls", "3", "--iters", "6", "--repeats", "2"];
    const SHAPES: &[&str] = &["--ways", "packets,lines,pieces", "--blocks", "1,3", "--threads", "64"];
    for (workload, bus) in
        [("all-reduce", 1.0), ("all-gather", 0.5), ("reduce-scatter", 0.5), ("all-to-all", 0.5)]
    {
        let report = report(workload, &[&[workload], SIZES, SHAPES].concat())?;
        assert_eq!(variants(&report)[..8], [["packets 1x64"; 4], ["packets 3x64"; 4]].concat());
        assert_eq!(variants(&report)[20..], ["pieces 3x64"; 4]);
        assert_eq!(column(&report, "size")[..4], [4, 200, 10_000, 20_000]);
        let bandwidth = &report["rows"][3]["bandwidth"];
        let [algorithm, on_the_bus] =
            ["algorithm", "bus"].map(|which| bandwidth[which].as_f64().unwrap_or(0.0));
        assert!((on_the_bus / algorithm - bus).abs() < 1e-9, "{bandwidth}");
    }
    let registered: &[&str] = &["--registered", "--ways", "direct,bulk", "--blocks", "2", "--threads", "64"];
    for (workload, ways) in
        [("all-gather", ["direct 2x64", "bulk 2x64"]), ("all-reduce", ["pieces 2x64", "pieces 2x64"])]
    {
        let report = report(&format!("{workload}-registered"), &[&[workload], SIZES, registered].concat())?;
        assert_eq!(variants(&report), [[ways[0]; 4], [ways[1]; 4]].concat());
    }
    Ok(())
}

/// More than can be done in a second: each of two ranks sends 1 GiB, by the threads of simulated devices, and reduces as
/// much. Whether the rest is over soon after the abort, or the process ends without it, depends on the machine.
fn too_long() -> Result<(), Failed> {
    let long = ["-b", "8M", "-e", "8M", "--calls", "128", "--iters", "128", "--limit", "1"];
    let mut program = Command::new(program());
    let output =
        output_within(5 * LIMIT, program.arg("all-reduce").args(long).env("MSCCLPP_PLATFORM", "host"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("did not finish within 1s; see "), "{said}");
    Ok(())
}

/// The best of each size and kind, or all; and a table with all of them.
fn tune() -> Result<(), Failed> {
    let small: &[&str] =
        &["tune", "-b", "256", "-e", "4K", "-f", "16", "--calls", "2", "--iters", "2", "--repeats", "1"];
    let few: &[&str] =
        &["--kinds", "all-reduce,reduce-scatter,all-gather", "--blocks", "1,2", "--threads", "32"];
    let best = report("tune", &[small, few].concat())?;
    assert_eq!(column(&best, "size"), [[256; 3], [4096; 3]].concat());
    assert!(notes(&best)[0].ends_with("for 6 of 6 combinations of kind and size"), "{best}");
    let text = best["text"].as_str().unwrap_or_default();
    for part in
        ["commit c0ffee", "Table {", "    all_reduce: &[", "    reduce_scatter: &[", "    exchange: &["]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("(u64::MAX, Way::").count(), 3, "{text}");
    let ways: &[&str] = &[
        "--all",
        "--kinds",
        "all-to-all",
        "--ways",
        "packets,pieces",
        "--blocks",
        "1",
        "--threads",
        "32,64",
    ];
    let all = report("tune-all", &[small, ways].concat())?;
    assert_eq!(column(&all, "size"), [256, 256, 4096, 4096]);
    assert_eq!(column(&all, "blocks"), [1; 4]);
    assert_eq!(variants(&all), ["packets 1x32", "packets 1x64", "packets 1x32", "packets 1x64"]);
    // As many as a run without options tries.
    assert!(
        column(&report("tune-quick", &["tune", "--quick", "--iters", "1", "--calls", "1"])?, "size").len()
            == 9
    );
    Ok(())
}

fn all_reduce_rmsnorm() -> Result<(), Failed> {
    let shape: &[&str] =
        &["--rows", "1,3", "--hidden", "264", "--calls", "3", "--iters", "6", "--repeats", "2"];
    let report = report("all-reduce-rmsnorm", &[&["all-reduce-rmsnorm"], shape].concat())?;
    assert_eq!(column(&report, "size"), [[528; 4], [1584; 4]].concat());
    let variants = variants(&report);
    for (variant, name) in variants.iter().zip(["all-reduce", "two-launches", "fused", "fused-fp8"].repeat(2))
    {
        assert!(variant.starts_with(&format!("{name} ")), "{variants:?}");
    }
    assert!(variants[6].contains("3 rows, lines 3x"), "{variants:?}");
    Ok(())
}

fn memory_put_packets() -> Result<(), Failed> {
    let workload: &[&str] = &["memory-put-packets", "--packets", "ll8,ll16,ll128"];
    let report = report("memory-put-packets", &[workload, ODD, SHAPE].concat())?;
    let expected = ["LL8", "LL16", "LL128"].map(|packets| {
        ["full", "half", "none"].map(|barriers| vec![format!("{packets} together {barriers} 3x64"); 3])
    });
    assert_eq!(variants(&report), expected.as_flattened().concat());
    // Some blocks put while others unpack, as far as there are several with work.
    let shape = ["--barriers", "half,none", "--blocks", "3", "--threads", "160", "--share", "4K"];
    for (roles, few, many) in [
        (&["--roles", "together"][..], "together", "together"),
        (&["--roles", "split"], "together", "split"),
        (&["--roles", "split", "--putters", "2"], "together", "split 2"),
        (&["--roles", "split", "--putters", "1000"], "together", "split 2"),
    ] {
        let sizes = ["-b", "4095", "-e", "20001", "-f", "5", "--iters", "3", "--repeats", "2"];
        let report = self::report("roles", &[workload, &sizes, &shape, roles].concat())?;
        let expected = ["LL8", "LL16", "LL128"].map(|packets| {
            ["half", "none"]
                .map(|barriers| [few, many].map(|roles| format!("{packets} {roles} {barriers} 3x160")))
        });
        assert_eq!(variants(&report), expected.as_flattened().as_flattened());
    }
    // More rounds than a graph has launches: the flags go on from replay to replay.
    let long = ["-b", "8", "-e", "8", "--iters", "2003", "--blocks", "1", "--warmup", "0", "--repeats", "1"];
    let report =
        self::report("replays", &[&["memory-put-packets", "--packets", "ll16"], &long[..]].concat())?;
    assert_eq!(column(&report, "rounds"), [2003]);
    Ok(())
}

/// What goes to standard output is JSON and nothing else. The commit is that of the checkout, unless somebody says it.
fn json_to_standard_output() -> Result<(), Failed> {
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
    // The build script's, which the tests are built with too.
    let commit = option_env!("MSCCLPP_GIT_COMMIT");
    assert_eq!(report["machine"]["commit"], commit.unwrap_or("unknown (set MSCCLPP_GIT_COMMIT)"));
    let is_checkout =
        Command::new("git").args(["rev-parse", "HEAD"]).output().is_ok_and(|git| git.status.success());
    assert!(commit.is_some() || !is_checkout, "built in a checkout without its commit");
    Ok(())
}

/// One wrong byte: the row has no times, the table says FAILED and so does the exit code.
fn wrong_data() -> Result<(), Failed> {
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

fn notes(report: &Value) -> Vec<&str> {
    report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Sizes that a thread puts by itself and larger ones, over both transports, in one launch and in many.
fn port_put() -> Result<(), Failed> {
    for (more, variant) in [
        (&["--bulk-put-max", "0"][..], "launches"),
        (&["--in-kernel", "--bulk-put-max", "5000"], "in kernel"),
        (&["--in-kernel", "--transport", "ethernet", "--staging", "4K,2", "--checksums"], "in kernel"),
        (&["--direct-put-max", "0", "--fifo-size", "2"], "launches"),
    ] {
        let report = report("port-put", &[&["port-put"], ODD, more].concat())?;
        assert_eq!(variants(&report), [variant; 3]);
        assert_eq!(column(&report, "size"), [1, 71, 5001]);
        assert!(report["rows"][0]["goal"].is_null(), "the figures are of other sizes: {report}");
        // A warm-up and two repeats of three rounds.
        let large = notes(&report).into_iter().find(|note| note.starts_with("5001 B: "));
        assert!(large.is_some_and(|note| note.contains(" and 9 puts, ")), "{report}");
    }
    // More rounds than a graph has launches.
    let long = ["port-put", "-b", "8", "-e", "8", "--iters", "2003", "--warmup", "0", "--repeats", "1"];
    assert_eq!(column(&report("port-put-long", &long)?, "rounds"), [2003]);
    Ok(())
}

fn port_pingpong() -> Result<(), Failed> {
    for more in [&["--bulk-put-max", "8999"][..], &["--transport", "ethernet", "--busy-poll", "20"]] {
        there_and_back("port-pingpong", more, 4, 15)?;
    }
    Ok(())
}

fn port_packet_pingpong() -> Result<(), Failed> {
    // Packets say themselves that they are there.
    there_and_back("port-packet-pingpong", &["--bulk-put-max", "0"], 8, 0)
}

fn there_and_back(workload: &str, more: &[&str], element: u64, signals: usize) -> Result<(), Failed> {
    let sizes = ["-b", "8", "-e", "9000", "-f", "100", "--iters", "5", "--repeats", "2", "--threads", "7"];
    let one = report(workload, &[&[workload, "--iters", "10", "--repeats", "2"], more].concat())?;
    assert_eq!(column(&one, "size"), [element]);
    let many = report(workload, &[&[workload], &sizes[..], more].concat())?;
    assert_eq!(column(&many, "size"), [8, 800, 9000]);
    assert_eq!(variants(&many), ["1x7"; 3]);
    let large = notes(&many).into_iter().find(|note| note.starts_with("9000 B: "));
    let expected = format!(" and 15 puts, {signals} signals ");
    assert!(large.is_some_and(|note| note.contains(&expected)), "{many}");
    Ok(())
}

fn launches() -> Result<(), Failed> {
    let report = report("launches", &["launches", "--iters", "20", "--repeats", "3", "--warmup", "1"])?;
    let (variants, bare) = (variants(&report), "bare cuLaunchKernel");
    assert!(
        variants.contains(&"values, own stream") && variants.contains(&"objects, own capture"),
        "{variants:?}"
    );
    assert_eq!(variants.contains(&bare), report["machine"]["platform"] == "cuda");
    let spoiled = run(&["launches", "--iters", "5", "--repeats", "1", "--spoil"]);
    assert!(!spoiled.status.success() && String::from_utf8_lossy(&spoiled.stdout).contains("FAILED"));
    Ok(())
}

fn fifo() -> Result<(), Failed> {
    // Under the race detector each of them takes longer.
    let looks_for_races = std::env::var_os("MSCCLPP_HOST_RACES").is_some_and(|value| value == "1");
    let iters = if looks_for_races { "1" } else { "9" };
    let arguments = ["fifo", "--threads", "1,5,1024", "--iters", iters, "--repeats", "2", "--fifo-size", "4"];
    let report = report("fifo", &arguments)?;
    assert_eq!(variants(&report), [["push and sync"; 3], ["pipelined"; 3]].concat());
    assert_eq!(column(&report, "size"), [1, 5, 1024, 1, 5, 1024]);
    assert_eq!(notes(&report).iter().filter(|note| note.contains("million triggers a second")).count(), 6);
    Ok(())
}

fn proxy_idle() -> Result<(), Failed> {
    let report = report("proxy-idle", &["proxy-idle", "--idle", "20", "--window", "20", "--repeats", "2"])?;
    assert_eq!(variants(&report), ["core time a second", "first trigger"]);
    assert!(report["rows"][0]["goal"].is_null(), "the goal is for a second without triggers: {report}");
    Ok(())
}

/// From host to host and from device to device, in one part and in several, of which some are empty.
fn ethernet_bw() -> Result<(), Failed> {
    for (where_to, devices, variant) in
        [(&[][..], 0, "host to host"), (&["--device-memory"], 2, "GPU to GPU")]
    {
        let arguments = [
            "-b",
            "1",
            "-e",
            "70001",
            "-f",
            "70000",
            "--connections",
            "1,3",
            "--iters",
            "3",
            "--repeats",
            "2",
        ];
        let report = report("ethernet", &[&["ethernet-bw"], where_to, &arguments].concat())?;
        let of_a_size = ["plain socket".to_owned(), format!("{variant} x1"), format!("{variant} x3")];
        assert_eq!(variants(&report), [&of_a_size[..], &of_a_size, &of_a_size].concat());
        assert_eq!(column(&report, "size"), [[1; 3], [70000; 3], [70001; 3]].concat());
        assert_eq!(report["machine"]["platform"] == "cpu", devices == 0);
        assert_eq!(report["machine"]["devices"].as_array().map(Vec::len), Some(devices));
        let rows = &report["rows"];
        assert!(rows[0]["baseline"].is_null() && rows[1]["goal"].is_null(), "{rows}");
        assert_eq!(rows[1]["baseline"], rows[0]["times"]["median"]);
        assert!(rows[7]["cpu"]["receiver"].as_f64() > Some(0.0), "{rows}");
        let notes = report["notes"].to_string();
        assert!(
            notes.contains("70000 B: ") && notes.contains("% of the plain socket's bandwidth"),
            "{notes}"
        );
    }
    let large = ["ethernet-bw", "--iters", "1", "--repeats", "1", "--warmup", "0"];
    let report = report("ethernet-large", &large)?;
    assert_eq!(column(&report, "size"), [64 << 20; 2]);
    let row = &report["rows"][1];
    let (baseline, goal) = (row["baseline"].as_f64().unwrap_or(0.0), row["goal"].as_f64().unwrap_or(0.0));
    assert!((goal * 0.9 / baseline - 1.0).abs() < 1e-9, "90 % of the plain socket's bandwidth: {row}");
    Ok(())
}

fn bootstrap() -> Result<(), Failed> {
    let report = report("bootstrap", &["bootstrap", "--ranks", "1,5", "--repeats", "2"])?;
    assert_eq!(variants(&report).len(), 8);
    Ok(())
}

/// Two calls of the program, as on two hosts: rank 0 has the results, rank 1 says nothing.
fn ranks_by_hand() -> Result<(), Failed> {
    let short: &[&str] = &["--iters", "2", "--repeats", "1"];
    for (workload, more) in [
        ("signal-pingpong", &["--gpu", "1"][..]),
        ("memory-put", &[]),
        ("port-put", &["--transport", "ethernet"]),
        ("ethernet-bw", &["-b", "1K"]),
    ] {
        let address = format!("127.0.0.1:{}", reserve_port());
        let rank = |rank: &'static str| {
            let whose = ["--rank", rank, "--address", &address];
            run(&[&[workload], &whose[..], short, more].concat())
        };
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| rank("1"));
            (rank("0"), second.join().expect("no panic"))
        });
        assert!(first.status.success() && second.status.success(), "{workload}: {first:?} {second:?}");
        let table = String::from_utf8_lossy(&first.stdout);
        assert!(table.trim_end().ends_with("ok"), "{workload}: {table}");
        assert!(second.stdout.is_empty() && second.stderr.is_empty(), "{workload}: {second:?}");
    }
    Ok(())
}

/// Both say what they were started with, without what is each rank's own or the default.
fn ranks_that_differ() -> Result<(), Failed> {
    for calls in [
        ["memory-put --iters 5", "memory-put --iters 7"],
        ["memory-put", "port-put"],
        ["ethernet-bw --begin 1K", "ll8-pingpong --threads 7"],
    ] {
        let address = format!("127.0.0.1:{}", reserve_port());
        let rank = |rank: usize| {
            let own = [["--rank", "0"], ["--rank", "1"]][rank];
            let call: Vec<_> = calls[rank].split(' ').collect();
            run(&[&call[..], &own, &["--address", &address, "--warmup", "1"]].concat())
        };
        let outputs = std::thread::scope(|scope| {
            let second = scope.spawn(|| rank(1));
            [rank(0), second.join().expect("no panic")]
        });
        for (rank, output) in outputs.iter().enumerate() {
            let other = 1 - rank;
            let expected = format!(
                "error: rank {other} was started with {:?}, this rank with {:?}: start both with the same workload and \
                 options\n",
                calls[other], calls[rank]
            );
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]));
        }
    }
    Ok(())
}

/// What nccl-tests print goes onto one picture with rows of this program.
fn plot_of_a_table() -> Result<(), Failed> {
    let (measured, table) = (scratch("beside.json"), scratch("nccl.txt"));
    let (json, text) = (measured.to_string_lossy(), table.to_string_lossy());
    let measuring = ["memory-get", "-b", "8", "-e", "4K", "-f", "8", "--iters", "2", "--repeats", "2"];
    assert!(run(&[&measuring[..], &["--json", &json]].concat()).status.success());
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

fn plot() -> Result<(), Failed> {
    let (measured, picture) = (scratch("plotted.json"), scratch("plotted.svg"));
    let (json, svg) = (measured.to_string_lossy(), picture.to_string_lossy());
    let measuring = run(&[
        "memory-get",
        "-b",
        "8",
        "-e",
        "4K",
        "-f",
        "8",
        "--iters",
        "2",
        "--repeats",
        "2",
        "--json",
        &json,
    ]);
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

fn bad_arguments() -> Result<(), Failed> {
    for arguments in [
        &["signal-pingpong", "--iters", "0"][..],
        &["bootstrap", "--ranks", "many"],
        &["signal-pingpong", "--devices", "0"],
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
        &["all-reduce", "--ranks", "3"],
        &["all-reduce", "--limit", "0"],
        &["tune", "--threads", "33"],
        &["plot"],
        &["plot", "x.json", "--json", "y.json"],
        &["signal-pingpong", "--rank", "2", "--address", "127.0.0.1:1"],
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
        // Not by each of two processes.
        let needs_no_device = ["-b", "--barriers"].iter().any(|option| arguments.contains(option));
        assert!(!needs_no_device || said.lines().count() == 1, "{said}");
    }
    Ok(())
}
