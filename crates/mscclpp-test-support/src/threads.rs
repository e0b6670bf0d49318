use std::{panic::resume_unwind, thread};

/// Calls `work` with each item, each in a thread of its own, and returns what they return, in the order of the items.
///
/// # Panics
/// Panics as the first item's thread did that panicked, when all threads have ended.
pub fn in_threads<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
