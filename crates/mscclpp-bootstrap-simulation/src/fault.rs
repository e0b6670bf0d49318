use std::time::Duration;

/// A fault that can happen.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// A process ends.
    Kill(usize),
    /// A node is gone.
    Vanish(usize),
    /// A process does nothing for a while.
    Stop(usize, Duration),
    /// A connection of a rank breaks, chosen by this number.
    Break(usize),
    /// The processes with `true` and those with `false` do not reach each other any more.
    Cut(Vec<bool>),
    /// A caller aborts the job.
    Abort(usize),
}
