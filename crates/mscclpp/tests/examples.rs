//! The examples as a user runs them: they succeed, print what they ran on, and explain wrong arguments.

#[path = "support/program.rs"]
mod program;

use std::process::{Command, Output};

use mscclpp::Platform;
use mscclpp_test_support::{LIMIT, Turn, child::output_within, listen, reserve_port};
use program::program;

const OF_ONE_PROCESS: [&str; 2] = ["gpu_ping_pong", "custom_kernel"];
const OF_MANY: [&str; 6] = [
    "gpu_ping_pong_mp",
    "bidir_memory_channel",
    "bidir_port_channel",
    "mesh_port_channels",
    "custom_proxy",
    "host_to_host",
];

/// Runs an example to its end, one at a time if they share GPUs.
fn run(example: &str, arguments: &[&str]) -> Output {
    let platform = Platform::detect_or_sim().expect("a usable platform");
    let _turn = Turn::take(platform != Platform::Sim);
    output_within(2 * LIMIT, Command::new(program(example)).args(arguments))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns an address for rank 0 to listen at that nobody else uses.
fn free_address() -> String {
    format!("127.0.0.1:{}", reserve_port())
}

fn succeeds(example: &str, arguments: &[&str]) {
    let output = run(example, arguments);
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}{complaints}");
    assert!(said.starts_with("Platform: "), "{said}");
    assert!(said.ends_with("Succeed!\n"), "{said}");
}

#[test]
fn those_of_one_process_succeed() {
    for example in OF_ONE_PROCESS {
        succeeds(example, &[]);
        succeeds(example, &["0", "0"]);
    }
}

#[test]
fn those_of_many_processes_succeed() {
    for example in OF_MANY.into_iter().filter(|example| *example != "host_to_host") {
        succeeds(example, &[&free_address()]);
    }
}

#[test]
fn two_cpus_succeed() {
    let output = run("host_to_host", &[&free_address()]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.matches("all as they should be").count() == 2 && said.ends_with("Succeed!\n"), "{said}");
}

/// Starts two ranks as a launcher does, without an argument, and returns their output.
fn launched(example: &str, variables: impl Fn(usize) -> Vec<(&'static str, String)> + Sync) -> Vec<Output> {
    std::thread::scope(|scope| {
        let start = |rank| {
            let variables = variables(rank);
            scope.spawn(|| output_within(2 * LIMIT, Command::new(program(example)).envs(variables)))
        };
        [0, 1].map(start).map(|rank| rank.join().expect("a rank that ends")).into()
    })
}

#[test]
fn launched_ranks_find_each_other_without_arguments() {
    let namespace = format!("examples-{}", std::process::id());
    let mpirun = |rank: usize| {
        let number = |name, value: usize| (name, value.to_string());
        vec![
            number("OMPI_COMM_WORLD_RANK", rank),
            number("OMPI_COMM_WORLD_SIZE", 2),
            number("OMPI_COMM_WORLD_LOCAL_RANK", rank),
            number("OMPI_COMM_WORLD_LOCAL_SIZE", 2),
            ("PMIX_NAMESPACE", namespace.clone()),
        ]
    };
    for example in ["host_to_host", "gpu_ping_pong_mp"] {
        for output in launched(example, mpirun) {
            let complaints = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{example}: {}{complaints}", text(&output.stdout));
        }
    }
}

#[test]
fn a_killed_rank_is_replaced_and_the_others_go_on() {
    let output = run("replace_a_rank", &[&free_address()]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert_eq!(said.matches("generation 2 after").count(), 4, "{said}");
    assert!(said.ends_with("Succeed!\n"), "{said}");
}

/// The ring has no arguments: it starts its ranks as threads, or is one rank that a launcher started.
#[test]
fn a_ring_is_threads_or_what_a_launcher_starts() {
    let has_all = |output: &Output, n: usize| {
        let said = text(&output.stdout);
        let ranks = said.matches(&format!("has the slices of all {n} ranks\n")).count();
        assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
        ranks
    };
    assert_eq!(has_all(&run("ring_all_gather", &[]), 4), 4);
    let address = free_address();
    let ours = |rank: usize| {
        vec![
            ("MSCCLPP_RANK", rank.to_string()),
            ("MSCCLPP_N_RANKS", "2".to_owned()),
            ("MSCCLPP_ADDRESS", address.clone()),
        ]
    };
    for output in launched("ring_all_gather", ours) {
        assert_eq!(has_all(&output, 2), 1);
    }
}

#[test]
fn what_a_launcher_leaves_open_is_said() {
    for output in launched("host_to_host", |rank| vec![("JOB_COMPLETION_INDEX", rank.to_string())]) {
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaints}");
        assert!(complaints.contains("MSCCLPP_N_RANKS"), "{complaints}");
    }
    for output in launched("gpu_ping_pong_mp", |rank| {
        vec![
            ("MSCCLPP_RANK", rank.to_string()),
            ("MSCCLPP_N_RANKS", "3".to_owned()),
            ("MSCCLPP_ADDRESS", free_address()),
        ]
    }) {
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaints}");
        assert!(complaints.contains("3 ranks were launched; this program has 2"), "{complaints}");
    }
}

#[test]
fn each_has_help() {
    for example in OF_ONE_PROCESS.iter().chain(&OF_MANY) {
        let output = run(example, &["--help"]);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{example}: {said}");
        assert!(said.starts_with(&format!("usage: {example} ")), "{said}");
    }
}

#[test]
fn bad_arguments_get_the_usage() {
    let of_one = ["--help-me", "0", "GPU 0", "0 -1", "0 1 2"];
    let of_many =
        ["--help-me", "127.0.0.1", "127.0.0.1:99999999", "127.0.0.1:15505 x", "127.0.0.1:15505 77 0"];
    for (examples, wrong) in [(&OF_ONE_PROCESS[..], of_one), (&OF_MANY, of_many)] {
        for (example, arguments) in examples.iter().flat_map(|example| wrong.map(|wrong| (example, wrong))) {
            let output = run(example, &arguments.split(' ').collect::<Vec<_>>());
            let complaints = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{example} {arguments}: {complaints}");
            assert!(
                complaints.contains(&format!("usage: {example} ")),
                "{example} {arguments}: {complaints}"
            );
        }
    }
}

#[test]
fn a_missing_device_is_named_at_once() {
    for (example, arguments) in
        [("gpu_ping_pong", &["0", "4711"][..]), ("gpu_ping_pong_mp", &[&free_address(), "1", "4711"])]
    {
        let output = run(example, arguments);
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{complaints}");
        assert!(complaints.contains("device 4711"), "{complaints}");
        assert!(!said.contains("bootstrap"), "it looked for the other rank first: {said}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let (_taken, address) = listen();
    let address = address.to_string();
    let output = run("gpu_ping_pong_mp", &[&address]);
    let complaints = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaints}");
    assert!(complaints.contains(&format!("{address} is in use")), "{complaints}");
}

#[test]
fn the_race_is_reported() {
    let mut command = Command::new(program("race"));
    let output = output_within(2 * LIMIT, command.env("MSCCLPP_SIM_RACES", "1"));
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("put __syncthreads() between"), "{complaint}");
}
