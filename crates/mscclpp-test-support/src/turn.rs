use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The turn of a test on the devices, which lasts until this is dropped.
pub enum Turn {
    /// Other tests use the devices, too.
    Shared(RwLockReadGuard<'static, ()>),
    /// No other test of the program uses the devices.
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Turn {
    /// Waits for the turn. On GPUs every test takes its turn `alone`, because a driver may make the set-up of one test wait for
    /// a kernel of another, which itself waits for something that is still to be set up. On simulated devices, a test does so
    /// if it looks at the free memory of a device.
    pub fn take(alone: bool) -> Self {
        static TURN: RwLock<()> = RwLock::new(());
        // The lock guards nothing but the turn, so a test that panicked does no harm.
        match alone {
            true => Self::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner)),
            false => Self::Shared(TURN.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}
