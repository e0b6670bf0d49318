//! Tests that the workloads run, check their results, and report them; and what several of these tests need.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{LIMIT, child::output_within, reserve_port};
use serde_json::Value;

use super::{collectives, jobs, memory, ports, program::program, results, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("runs::signal_pingpong_has_a_row_for_each_pair", memory::signal_pingpong),
        trial("runs::relaxed_on_one_device", memory::relaxed_on_one_device),
        trial("runs::packets_go_back_and_forth", memory::packet_pingpong),
        trial("runs::memory_is_put_and_got_with_every_kind_of_barriers", memory::memory_put_and_get),
        trial("runs::packets_of_every_kind_are_put", memory::memory_put_packets),
        trial("runs::collectives_have_rows_like_those_of_nccl_tests", collectives::collectives),
        trial("runs::more_launches_than_a_stream_holds_are_timed", collectives::many_launches),
        trial("runs::collectives_that_do_not_end_are_an_error", collectives::too_long),
        trial("runs::tuning_gives_a_table", collectives::tune),
        trial("runs::all_reduce_rmsnorm_has_rows_for_one_launch_and_two", collectives::all_reduce_rmsnorm),
        trial("runs::experts_may_be_fewer_than_choices", collectives::few_experts),
        trial("runs::wrong_data_fails", results::wrong_data),
        trial("runs::json_goes_to_standard_output_alone", results::json_to_standard_output),
        trial("runs::ports_put_small_and_large", ports::port_put),
        trial("runs::ports_go_back_and_forth", ports::port_pingpong),
        trial("runs::packets_of_ports_go_back_and_forth", ports::port_packet_pingpong),
        trial("runs::a_fifo_takes_triggers_of_any_number_of_threads", ports::fifo),
        trial("runs::launches_stand_beside_the_drivers_own", ports::launches),
        trial("runs::an_idle_proxy_is_measured", ports::proxy_idle),
        trial("runs::puts_over_ethernet_stand_beside_a_plain_socket", jobs::ethernet_bw),
        trial("runs::bootstrap_has_its_phases", jobs::bootstrap),
        trial("runs::ranks_that_are_started_apart_find_each_other", jobs::ranks_by_hand),
        trial("runs::ranks_that_are_started_differently_stop_at_once", jobs::ranks_that_differ),
        trial("runs::results_are_plotted", results::plot),
        trial("runs::tables_of_nccl_tests_are_plotted_beside_results", results::plot_of_a_table),
        trial("runs::what_is_no_result_is_named", results::malformed_results),
        trial("runs::bad_arguments_are_refused", results::bad_arguments),
    ]
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    output_within(5 * LIMIT, Command::new(program()).args(arguments).env("MSCCLPP_GIT_COMMIT", "c0ffee"))
}

/// The outputs of two ranks that are started by hand: `start` runs one, given its number and the address where they meet.
pub(crate) fn by_hand(start: impl Fn(usize, &str) -> Output + Sync) -> [Output; 2] {
    let address = format!("127.0.0.1:{}", reserve_port());
    thread::scope(|scope| {
        let second = scope.spawn(|| start(1, &address));
        [start(0, &address), second.join().expect("no panic")]
    })
}

/// The path of a file of this run of the tests.
pub(crate) fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mscclpp-bench-{}-{name}", std::process::id()))
}

/// The JSON of a run that must succeed.
pub(crate) fn report(call: impl AsRef<str>) -> Result<Value, Failed> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let path = scratch(&format!("{}.json", RUNS.fetch_add(1, Ordering::Relaxed)));
    let output = run(&[&words(call.as_ref())[..], &["--json", &path.to_string_lossy()]].concat());
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    // Standard error is not a terminal, so no progress was drawn.
    assert_eq!(said_beside_rows(&output.stderr), "");
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

/// The words of a command line.
pub(crate) fn words(call: &str) -> Vec<&str> {
    call.split_whitespace().collect()
}

pub(crate) fn variants(report: &Value) -> Vec<&str> {
    report["rows"].as_array().into_iter().flatten().filter_map(|row| row["variant"].as_str()).collect()
}

pub(crate) fn column(report: &Value, name: &str) -> Vec<u64> {
    report["rows"].as_array().into_iter().flatten().filter_map(|row| row[name].as_u64()).collect()
}

/// Sizes that are multiples of no unit, shared by few threads or many.
pub(crate) const ODD: &str = "-b 1 -e 5001 -f 71 --iters 3 --warmup 1 --repeats 2";
pub(crate) const SHAPE: &str = "--barriers full,half,none --blocks 3 --threads 64 --share 100";

pub(crate) fn notes(report: &Value) -> Vec<&str> {
    report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The standard error of a run, without the messages about rows that take long on a busy machine.
pub(crate) fn said_beside_rows(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.split_inclusive('\n').filter(|line| !line.ends_with(" s so far\n")).collect()
}
