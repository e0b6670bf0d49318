use std::sync::OnceLock;

/// Whether the detector is on. Read once; a malformed value counts as off here, and is an error where devices are opened.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| crate::env::sim_races().unwrap_or(false))
}
