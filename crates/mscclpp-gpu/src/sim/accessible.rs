use super::{
    races,
    ranges::{self, Whose},
};

/// Memory that kernels may touch until this is dropped.
///
/// The race detector is told when it comes and when it goes.
pub(super) struct AccessibleRange {
    begin: usize,
}

impl AccessibleRange {
    /// Adds memory that no other call has added, and that has `reserved` bytes with its guard.
    pub(super) fn new(begin: usize, bytes: u64, reserved: u64, whose: Whose) -> Self {
        if matches!(whose, Whose::Device(_)) {
            races::allocated(begin);
        }
        races::forget(begin, bytes as usize);
        ranges::insert(begin, bytes, reserved, whose);
        Self { begin }
    }
}

impl Drop for AccessibleRange {
    fn drop(&mut self) {
        if let Some(bytes) = ranges::remove(self.begin) {
            races::forget(self.begin, bytes as usize);
        }
    }
}
