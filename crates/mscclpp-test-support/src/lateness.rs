//! How late a busy machine wakes threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How many wake-ups that are late may delay what a test times.
const WAKE_UPS: u32 = 20;

/// A thread that looks how late it is woken.
pub struct Lateness {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Lateness {
    /// Starts the thread.
    pub fn watch() -> Self {
        const NAP: Duration = Duration::from_millis(10);
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let thread = thread::spawn(move || {
            let mut most = Duration::ZERO;
            while !seen.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(NAP);
                most = most.max(began.elapsed().saturating_sub(NAP));
            }
            most
        });
        Self { ended, thread }
    }

    /// Ends the thread. Returns how long something may have taken on this machine that takes at most `promised` on an idle one.
    ///
    /// # Panics
    /// Panics if the thread has.
    pub fn allows(self, promised: Duration) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        promised + WAKE_UPS * self.thread.join().expect("a thread that naps")
    }
}
