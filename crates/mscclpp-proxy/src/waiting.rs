//! Waits for the proxy's thread, which are logged when they take long.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use mscclpp_os::waiting::LongWait;

/// Returns what `receiver` receives, within `limit` if there is one. Logs the wait after `log_after`, and then ever
/// more rarely; `what`, which describes it, is called only then.
pub(crate) fn receive<T>(
    receiver: &Receiver<T>,
    limit: Option<Duration>,
    log_after: Duration,
    what: impl Fn() -> String,
) -> Result<T, RecvTimeoutError> {
    let start = Instant::now();
    let mut long = LongWait::since(start, log_after);
    let deadline = limit.and_then(|limit| start.checked_add(limit));
    loop {
        let now = Instant::now();
        let wake_at = [deadline, long.wake_at()].into_iter().flatten().min();
        let received = match wake_at {
            Some(at) => receiver.recv_timeout(at.saturating_duration_since(now)),
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Err(RecvTimeoutError::Timeout) => {}
            received => return received,
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(RecvTimeoutError::Timeout);
        }
        long.log(now, None, &what);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::mpsc};

    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    /// Checks that a wait goes on after it was logged: the number is sent only then.
    #[test]
    fn a_long_wait_is_said_and_goes_on() {
        let (sender, receiver) = mpsc::channel();
        let said = Cell::new(0);
        let what = || {
            said.set(said.get() + 1);
            if said.get() == 2 {
                sender.send(7).unwrap();
            }
            "a number".to_owned()
        };
        assert_eq!(receive(&receiver, None, SOON, what), Ok(7));
        assert_eq!(said.get(), 2);
    }

    #[test]
    fn a_limit_ends_it_and_so_does_a_sender_that_is_gone() {
        let (sender, receiver) = mpsc::channel::<u8>();
        let never = || unreachable!("a wait that is not to be logged");
        assert_eq!(receive(&receiver, Some(SOON), Duration::MAX, never), Err(RecvTimeoutError::Timeout));
        drop(sender);
        assert_eq!(receive(&receiver, None, Duration::MAX, never), Err(RecvTimeoutError::Disconnected));
    }
}
