use std::{hint, thread, time::Duration};

use super::launch::end_with_launch;

/// How a thread waits for another without taking its core away: it spins, then yields, then sleeps briefly.
///
/// For host twins that wait for a word to change. Eight simulated devices run on two cores, so a wait that only spun
/// would mostly keep the thread from running that it waits for. The wait's own bound is the caller's affair: every
/// wait needs one, or something that ends it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use mscclpp_gpu::host::Backoff;
///
/// fn wait(token: &AtomicU64, expected: u64, max_rounds: u64) -> bool {
///     let mut backoff = Backoff::new();
///     for _ in 0..max_rounds {
///         if token.load(Ordering::Acquire) >= expected {
///             return true;
///         }
///         backoff.wait();
///     }
///     false
/// }
/// assert!(wait(&AtomicU64::new(3), 3, 1));
/// assert!(!wait(&AtomicU64::new(2), 3, 500));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    rounds: u32,
}

impl Backoff {
    const SPINS: u32 = 64;
    const YIELDS: u32 = 256;
    const NAP: Duration = Duration::from_micros(20);

    /// Starts with spinning.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits a little: the longer, the more often it was called. Never longer than one short sleep (20 us, which the
    /// system rounds up).
    ///
    /// # Panics
    /// In a host twin, if another block of the same launch has panicked: a kernel fails as a whole, as on a GPU.
    pub fn wait(&mut self) {
        match self.rounds {
            0..Self::SPINS => hint::spin_loop(),
            Self::SPINS..Self::YIELDS => thread::yield_now(),
            _ => {
                end_with_launch();
                thread::sleep(Self::NAP);
            }
        }
        self.rounds = self.rounds.saturating_add(1);
    }

    /// Starts again with spinning, for the next thing to wait for.
    pub fn reset(&mut self) {
        self.rounds = 0;
    }
}
