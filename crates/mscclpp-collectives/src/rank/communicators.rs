//! How many communicators this process has on a device, and for the calls of how many it has room.

use std::collections::HashMap;

use mscclpp::{Gpu, Platform};
use parking_lot::Mutex;

static ON_DEVICES: Mutex<Option<HashMap<(Platform, usize), u32>>> = Mutex::new(None);

/// One communicator of the process, counted while it lives.
pub(crate) struct Counted(Platform, usize);

impl Counted {
    /// Counts one more on `gpu`. Returns how many these are.
    pub(crate) fn on(gpu: &Gpu) -> (Self, u32) {
        let counted = Self(gpu.platform(), gpu.id());
        let mut devices = ON_DEVICES.lock();
        let count = devices.get_or_insert_default().entry((counted.0, counted.1)).or_default();
        *count += 1;
        (counted, *count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(count) = ON_DEVICES.lock().get_or_insert_default().get_mut(&(self.0, self.1)) {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_live_are_counted() {
        let gpu = Platform::Sim.gpu(7).expect("a simulated device");
        let (first, count) = Counted::on(&gpu);
        assert_eq!(count, 1);
        let (_second, count) = Counted::on(&gpu);
        assert_eq!(count, 2);
        drop(first);
        assert_eq!(Counted::on(&gpu).1, 2);
    }
}
