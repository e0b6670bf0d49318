use std::sync::{Once, OnceLock};

use tracing::{Dispatch, subscriber::NoSubscriber};

/// Whether the detector is on. Read once; a malformed value counts as off here, and is an error where devices are opened.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| crate::env::sim_races().unwrap_or(false))
}

/// Says once, if the detector is on, that memory of another process is mapped: an error of the log, which is shown usually, or a
/// line on standard error in a process without a log subscriber.
pub(in super::super) fn say_what_is_not_seen() {
    const TEXT: &str = "MSCCLPP_SIM_RACES: memory of another process is mapped. What that process does with it is not seen, so races \
                        between processes are not found: make the ranks threads of one process (see Races in the book)";
    static SAID: Once = Once::new();
    if is_on() {
        SAID.call_once(|| match tracing::dispatcher::get_default(Dispatch::is::<NoSubscriber>) {
            true => eprintln!("mscclpp: {TEXT}"),
            false => tracing::error!(target: "mscclpp::gpu", "{TEXT}"),
        });
    }
}
