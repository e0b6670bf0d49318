//! Children that behave as expected, and children that do not.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_test_support::{
    Child, LIMIT,
    child::{as_child, await_end, hear, output_within, role, say},
    watched,
};

fn main() -> ExitCode {
    if let Some(role) = role() {
        return play(&role);
    }
    let trials = vec![
        Trial::test("a_child_says_and_hears", says_and_hears),
        Trial::test("a_failure_shows_what_the_child_said", shows_what_it_said),
        Trial::test("a_child_that_fails_or_says_more_is_no_success", no_success),
        Trial::test("a_dropped_child_is_gone", gone),
        Trial::test("the_output_of_a_command_is_all_of_it", output),
        Trial::test("work_that_does_not_end_ends_the_process", watch),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn play(role: &[String]) -> ExitCode {
    match role.first().map_or("", String::as_str) {
        "echo" => {
            for _ in 0..2 {
                say(&hear());
            }
            await_end();
            ExitCode::SUCCESS
        }
        "fail" => {
            say("in vain");
            ExitCode::from(3)
        }
        "hang" => watched(Duration::from_millis(50), "the sleep of a test", || {
            std::thread::sleep(LIMIT);
            ExitCode::SUCCESS
        }),
        "end in time" => watched(LIMIT, "nothing", || ExitCode::SUCCESS),
        "much" => {
            print!("{}", "x".repeat(1 << 20));
            eprint!("{}", "y".repeat(1 << 20));
            ExitCode::SUCCESS
        }
        other => panic!("no such role: {other}"),
    }
}

/// Returns the message of `work`'s panic.
fn panic_of(work: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(work)).expect_err("a panic");
    payload.downcast_ref::<String>().expect("a text").clone()
}

fn says_and_hears() -> Result<(), Failed> {
    let mut child = Child::start(&["echo"]);
    for word in ["one", "two words"] {
        child.tell(word);
        child.expect(word);
    }
    assert_eq!(child.line_before(Instant::now() + Duration::from_millis(20)), None);
    child.close_input();
    child.expect_success();
    Ok(())
}

fn shows_what_it_said() -> Result<(), Failed> {
    let mut child = Child::start(&["echo"]);
    child.tell("first");
    child.tell("second");
    child.expect("first");
    let said = panic_of(|| child.expect("third"));
    for part in ["echo", "\"second\" where \"third\" was due", "first\n  second"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    Ok(())
}

fn no_success() -> Result<(), Failed> {
    let mut child = Child::start(&["fail"]);
    child.expect("in vain");
    let said = panic_of(|| child.expect_success());
    assert!(said.contains("exit status: 3"), "{said}");
    let mut child = Child::start(&["echo"]);
    child.tell("one more");
    child.tell("and another");
    child.close_input();
    let said = panic_of(|| child.expect_success());
    assert!(said.contains("one more"), "{said}");
    Ok(())
}

fn gone() -> Result<(), Failed> {
    let child = Child::start(&["echo"]);
    let id = child.id();
    let process = format!("/proc/{id}");
    assert!(std::fs::exists(&process)?);
    drop(child);
    assert!(!std::fs::exists(&process)?);
    Ok(())
}

fn output() -> Result<(), Failed> {
    let output = output_within(LIMIT, &mut as_child(&["much"]));
    assert!(output.status.success());
    assert_eq!((output.stdout, output.stderr), (vec![b'x'; 1 << 20], vec![b'y'; 1 << 20]));
    assert_eq!(output_within(LIMIT, &mut as_child(&["fail"])).status.code(), Some(3));
    Ok(())
}

fn watch() -> Result<(), Failed> {
    let hung = output_within(LIMIT, &mut as_child(&["hang"]));
    let said = String::from_utf8(hung.stderr)?;
    assert!(!hung.status.success() && said.contains("the sleep of a test has not ended"), "{said}");
    assert!(output_within(LIMIT, &mut as_child(&["end in time"])).status.success());
    Ok(())
}
