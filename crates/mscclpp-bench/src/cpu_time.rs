//! The processor time that this process has used.

use std::{
    ops::{AddAssign, Sub},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// Processor time of all threads of the process, in the program and in the system on its behalf.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTime(Duration);

impl CpuTime {
    /// The time used since the process began.
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        // Neither is ever negative.
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    pub(crate) fn as_nanos(self) -> u64 {
        // Hundreds of years fit.
        self.0.as_nanos() as u64
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl AddAssign for CpuTime {
    fn add_assign(&mut self, more: Self) {
        self.0 += more.0;
    }
}
