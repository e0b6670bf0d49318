//! Races that were found, before they have a text.

use std::sync::Arc;

use super::{clock::Clock, record::Record};

/// A race that was found, without its text.
pub(super) struct Found {
    /// None if nobody has ever written what was read.
    pub(super) earlier: Option<Record>,
    pub(super) later: Record,
    pub(super) memory: String,
    /// The synchronisation that nearly ordered the two.
    pub(super) near_miss: Option<NearMiss>,
}

/// Something that would have ordered two accesses.
#[derive(Clone)]
pub(super) struct NearMiss {
    pub(super) why: Why,
    /// The clock that the later thread would have learned; None for all earlier accesses of the storing thread.
    pub(super) clock: Option<Arc<Clock>>,
    /// The store to a word behind the earlier access.
    pub(super) store: Record,
    /// Where the word was read in front of the later access.
    pub(super) load: u32,
}

/// Why it did not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The word was stored without release.
    Store,
    /// The word was read without acquire.
    Load,
    /// One of the two has a scope without the other.
    Scope,
    /// The store and the load have different sizes.
    Size,
}
