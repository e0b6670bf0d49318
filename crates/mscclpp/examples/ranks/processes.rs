//! Ranks that are processes of the same program, from the view of the one that started them.

use std::{
    error::Error,
    process::Child,
    time::{Duration, Instant},
};

use mscclpp::errors::BootstrapError;

/// The exit code of a rank that failed.
pub(crate) const FAILED: u8 = 1;
pub(crate) const BAD_ARGUMENTS: u8 = 2;
/// The time that the other ranks may run after one has failed; they notice by themselves within five seconds.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) fn is_about_the_address(error: &mscclpp::Error) -> bool {
    matches!(error, mscclpp::Error::Bootstrap(error) if matches!(**error, BootstrapError::BadAddress { .. }))
}

/// Returns the exit code of the first that fails, or 0.
pub(crate) fn wait_for(mut ranks: Vec<Child>) -> Result<u8, Box<dyn Error>> {
    let mut failed: Option<(u8, Instant)> = None;
    while !ranks.is_empty() {
        let mut running = Vec::new();
        for mut rank in ranks {
            match rank.try_wait()? {
                None => running.push(rank),
                Some(status) if status.success() => {}
                Some(status) => {
                    if status.code().is_none() {
                        eprintln!("A rank was ended: {status}");
                    }
                    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
                    failed.get_or_insert((code, Instant::now()));
                }
            }
        }
        ranks = running;
        if failed.is_some_and(|(_, when)| when.elapsed() > GRACE) {
            stop(&mut ranks);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(failed.map_or(0, |(code, _)| code))
}

pub(crate) fn stop(ranks: &mut Vec<Child>) {
    for mut rank in ranks.drain(..) {
        // Neither call fails for a child that has not been waited for.
        let _ = rank.kill();
        let _ = rank.wait();
    }
}
