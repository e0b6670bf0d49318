//! Tests of collectives between processes that count as two nodes: what they print while they run, and how they end.

use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{LIMIT, child::output_within};

use super::{program::program, runs::by_hand, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("nodes::ranks_say_what_they_are_doing", ranks_say_what_they_are_doing),
        trial("nodes::a_run_that_takes_too_long_says_where_it_was", too_long),
    ]
}

/// Runs both ranks and returns their outputs.
fn run(options: &[&str]) -> [Output; 2] {
    by_hand(|rank, address| {
        let mut program = Command::new(program());
        program.args(["all-reduce", "--rank", &rank.to_string(), "--address", address]).args(options);
        program.env("MSCCLPP_PLATFORM", "sim").env("MSCCLPP_HOSTID", format!("node {rank}"));
        output_within(5 * LIMIT, &mut program)
    })
}

fn ranks_say_what_they_are_doing() -> Result<(), Failed> {
    let sizes = ["-b", "1K", "-e", "4K", "-f", "4", "--repeats", "1", "--dtype", "f32"];
    let outputs = run(&[&sizes[..], &["--watch", "600"]].concat());
    for (rank, output) in outputs.iter().enumerate() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said}"));
        assert!(at("setting up the library's collectives") < at("all-reduce of 4096 B"), "{said}");
        assert!(said.lines().all(|line| line.starts_with(&format!("rank {rank}, "))), "{said}");
        // The table has the rows.
        assert!(!said.contains(" us ("), "{said}");
    }
    let table = String::from_utf8_lossy(&outputs[0].stdout);
    assert_eq!(table.lines().filter(|line| line.ends_with("ok")).count(), 2, "{table}");
    Ok(())
}

fn too_long() -> Result<(), Failed> {
    // These calls take longer than the limit on any machine.
    let long = ["-b", "16M", "-e", "16M", "--calls", "1000", "--iters", "100000", "--watch", "2"];
    let outputs = run(&long);
    let said = outputs.each_ref().map(|output| String::from_utf8_lossy(&output.stderr));
    assert!(outputs.iter().all(|output| output.status.code() == Some(1)), "{said:?}");
    // The rank that is later may first notice that the other has ended.
    assert!(
        said.iter().any(|said| said.contains(" is not done within the 2 s of --watch; for ")),
        "{said:?}"
    );
    Ok(())
}
