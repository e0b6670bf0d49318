//! Waits on the host for an event that an adapter, or a transport's threads, will cause.

use std::time::{Duration, Instant};

use crate::Result;

/// The longest time of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The number of polls before a wait yields the processor between polls.
const SPINS: u32 = 100;
/// The number of polls between two looks at the clock.
const LOOKS: u32 = 1000;

/// Polls until there is a value, for at most 60 seconds.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let (mut looks, mut began) = (0_u32, None);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        looks = looks.wrapping_add(1);
        if looks <= SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        if looks.is_multiple_of(LOOKS) && began.get_or_insert_with(Instant::now).elapsed() > LIMIT {
            let seconds = LIMIT.as_secs();
            return Err(format!("waited {seconds} s for {what}; has the other rank ended?").into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_is_found_or_with_an_error() {
        let mut looks = 0;
        let mut after = |n: u32| {
            wait_for("a number", || {
                looks += 1;
                if looks == 5000 { Err("no more".into()) } else { Ok((looks >= n).then_some(looks)) }
            })
        };
        assert_eq!(after(1).unwrap(), 1);
        assert_eq!(after(1500).unwrap(), 1500);
        assert_eq!(after(9999).unwrap_err().to_string(), "no more");
    }
}
