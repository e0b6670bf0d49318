//! Trials, and those that not every machine allows: there they are reported as ignored, with the reason. Those that need devices
//! have a time limit.

use std::{thread, time::Duration};

use libtest_mimic::{Failed, Trial};

use crate::wait::within;

/// The time limit of a trial, much longer than any of them takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes trials, each called as its function. After `by RUN:`, each function is run by `RUN`.
#[macro_export]
macro_rules! trials {
    (by $run:ident: $($test:ident),* $(,)?) => {
        vec![$(libtest_mimic::Trial::test(stringify!($test), || $run($test))),*]
    };
    ($($test:ident),* $(,)?) => {
        vec![$(libtest_mimic::Trial::test(stringify!($test), $test)),*]
    };
}

/// Makes a trial of `test`, which needs `count` of what `kind` says, of which `there` are there. It runs on a thread of its own.
pub fn trial_that_needs(
    kind: &str,
    count: usize,
    there: usize,
    name: &str,
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    let trial = Trial::test(name, move || within_the_limit(test));
    match there >= count {
        true => trial,
        false => trial.with_kind(format!("{kind}: needs {count}, found {there}")).with_ignored_flag(true),
    }
}

/// Makes a trial of `test`, which is ignored, with the reason, if it is not possible.
pub fn trial_if(name: &str, possible: &Result<(), String>, test: fn() -> Result<(), Failed>) -> Trial {
    match possible {
        Ok(()) => Trial::test(name, test),
        Err(why) => Trial::test(format!("{name} ({why})"), test).with_ignored_flag(true),
    }
}

/// Returns the trials of several modules. The name of each module stands before its trials.
pub fn of_modules<const N: usize>(modules: [(&str, Vec<Trial>); N]) -> Vec<Trial> {
    let of_module = |(name, trials): (&str, Vec<Trial>)| -> Vec<Trial> {
        trials.into_iter().map(|trial| trial.with_kind(name)).collect()
    };
    modules.into_iter().flat_map(of_module).collect()
}

fn within_the_limit(test: impl FnOnce() + Send + 'static) -> Result<(), Failed> {
    let thread = thread::spawn(test);
    if !within(LIMIT, || thread.is_finished()) {
        return Err(format!("it still runs after {LIMIT:?}").into());
    }
    thread.join().map_err(|_| "it panicked; the message is above".into())
}
