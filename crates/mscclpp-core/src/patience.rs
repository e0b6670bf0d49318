//! Host threads that wait.

use std::time::Duration;

/// Waits for what a transport's own threads or hardware do: a little, then longer.
#[derive(Default)]
pub(crate) struct Patience {
    looks: u32,
}

/// The first looks come one behind the other. A pause that grew would be time in which nobody looks.
const SPINS: u32 = 100;
/// The next looks give the processor to others in between, up to this one. After that, waits are sleeps.
const YIELDS: u32 = 1100;

impl Patience {
    /// Waits a little, longer when it has been called often. Whether it slept: then there is time to look at the clock.
    pub(crate) fn wait(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= SPINS {
            std::hint::spin_loop();
        } else if self.looks <= YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.looks > YIELDS
    }
}
