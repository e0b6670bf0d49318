use std::{hint, thread, time::Duration};

/// The pauses of a thread that waits for another thread, a device or a peer: at first it looks again at once, then it
/// yields the processor between two looks, then it sleeps between them.
///
/// `crossbeam_utils::Backoff` is not used: its pauses grow, and in them nobody looks, and it never sleeps.
///
/// ```
/// use mscclpp_os::waiting::Backoff;
/// # let mut looks = 0;
/// # let mut has_come = || { looks += 1; looks > 300 };
/// let mut backoff = Backoff::default();
/// while !has_come() {
///     backoff.wait();
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    spins: u32,
    yields: u32,
    nap: Duration,
    looks: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(100, 1000, Duration::from_micros(50))
    }
}

impl Backoff {
    /// Makes a backoff that spins and yields so many times, and then sleeps for `nap` each time.
    #[must_use]
    pub const fn new(spins: u32, yields: u32, nap: Duration) -> Self {
        Self { spins, yields, nap, looks: 0 }
    }

    /// Waits a little, longer after many calls. Returns whether it slept: then there is time to look at the clock.
    pub fn wait(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= self.spins {
            hint::spin_loop();
        } else if self.looks <= self.spins + self.yields {
            thread::yield_now();
        } else {
            thread::sleep(self.nap);
            return true;
        }
        false
    }

    /// Makes the next wait short again, for callers that have found something.
    pub fn reset(&mut self) {
        self.looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_only_when_it_has_looked_often() {
        let mut backoff = Backoff::new(2, 3, Duration::ZERO);
        for _ in 0..2 {
            let slept: Vec<_> = (0..7).map(|_| backoff.wait()).collect();
            assert_eq!(slept, [false, false, false, false, false, true, true]);
            backoff.reset();
        }
    }
}
