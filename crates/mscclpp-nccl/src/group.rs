//! `ncclGroupStart` and `ncclGroupEnd`: what a thread calls in between is done at the end, together.

use std::{
    cell::RefCell,
    sync::Arc,
    thread::{self, JoinHandle},
};

use crate::{
    abi::{Code, Handle, Place},
    calls::{self, Call},
    comm::{self, Comm},
    failure::Failure,
    forming,
};

/// The group of a thread.
#[derive(Default)]
struct Group {
    /// How many starts have no end yet.
    depth: usize,
    calls: Vec<Call>,
    created: Vec<Created>,
    /// What ranks do together, each on a thread: this one may have several of them.
    together: Vec<JoinHandle<Result<(), Failure>>>,
    /// The first call that failed.
    failed: Option<Failure>,
}

/// A communicator for which the end of the group waits.
struct Created {
    place: Place<Handle>,
    comm: Arc<Comm>,
    handle: Handle,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// `ncclGroupStart`.
pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// `ncclGroupEnd`.
///
/// # Errors
/// The first failure of the group. If a call has failed when it was made, none of the group's calls is put into a stream.
pub(crate) fn end() -> Result<Code, Failure> {
    let Some(group) = leave()? else { return Ok(Code::SUCCESS) };
    let created = wait_for(group.created, group.failed.is_some());
    let done = join(group.together);
    if let Some(failed) = group.failed {
        return Err(failed);
    }
    first(first(created, done.map(Code::from)), calls::submit(group.calls).map(Code::from))
}

/// `ncclGroupSimulateEnd`: ends the group, and gives back the calls that were not made.
///
/// # Errors
/// [`Code::INVALID_USAGE`] where the group goes on outside; the first failure of the group.
pub(crate) fn end_without_calls() -> Result<Vec<Call>, Failure> {
    let Some(group) = leave()? else { return Ok(Vec::new()) };
    let created = wait_for(group.created, group.failed.is_some());
    let done = join(group.together);
    if let Some(failed) = group.failed {
        return Err(failed);
    }
    created.and(done.map(|()| group.calls))
}

/// Waits for what was created. If a rank of them may be missing, they are given up.
fn wait_for(created: Vec<Created>, give_up: bool) -> Result<Code, Failure> {
    if give_up {
        created.iter().for_each(|created| created.comm.abort());
    }
    // All of them, whatever the first one says.
    let answers =
        created.into_iter().map(|Created { place, comm, handle }| forming::created(place, &comm, handle));
    answers.fold(Ok(Code::SUCCESS), first)
}

/// What all of them answer.
fn join(together: Vec<JoinHandle<Result<(), Failure>>>) -> Result<(), Failure> {
    // All of them, whatever the first one says.
    let answers = together.into_iter().map(|thread| {
        thread
            .join()
            .unwrap_or_else(|_| Err(Failure::new(Code::INTERNAL_ERROR, "a thread of the group panicked")))
    });
    answers.fold(Ok(()), Result::and)
}

/// Does what waits for other ranks that do the same: at once, or until the end of the group.
pub(crate) fn together(what: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Result<Code, Failure> {
    if !in_group(|group| group.depth > 0) {
        return what().map(Code::from);
    }
    let thread = thread::Builder::new().name("mscclpp-nccl-group".to_owned()).spawn(what);
    let thread = thread.map_err(|error| {
        Failure::new(Code::SYSTEM_ERROR, format!("no thread for a call of a group: {error}"))
    })?;
    in_group(|group| group.together.push(thread));
    Ok(Code::SUCCESS)
}

/// The group, if this is its last end.
fn leave() -> Result<Option<Group>, Failure> {
    GROUP.with_borrow_mut(|group| {
        group.depth = group
            .depth
            .checked_sub(1)
            .ok_or_else(|| Failure::usage("a group ends that this thread has not started"))?;
        Ok((group.depth == 0).then(|| std::mem::take(group)))
    })
}

/// Failures go first, then what goes on.
fn first(one: Result<Code, Failure>, other: Result<Code, Failure>) -> Result<Code, Failure> {
    match (one?, other?) {
        (Code::SUCCESS, other) => Ok(other),
        (one, _) => Ok(one),
    }
}

/// A call of a communicator: made at once, or at the end of the group.
pub(crate) fn call(call: Call) -> Result<Code, Failure> {
    if in_group(|group| group.depth > 0) {
        in_group(|group| group.calls.push(call));
        return Ok(Code::SUCCESS);
    }
    calls::submit_one(&call).map(Code::from)
}

/// If a call failed when it was made, the group fails with it.
pub(crate) fn noted<T>(made: Result<T, Failure>) -> Result<T, Failure> {
    if let Err(failure) = &made {
        in_group(|group| {
            if group.depth > 0 {
                group.failed.get_or_insert_with(|| failure.clone());
            }
        });
    }
    made
}

/// A communicator that is being formed: its handle goes to its place. Waits for it at once, or at the end of the group.
pub(crate) fn created(place: Place<Handle>, comm: Arc<Comm>) -> Result<Code, Failure> {
    let handle = comm::add(&comm);
    place.set(handle);
    if in_group(|group| group.depth > 0) {
        in_group(|group| group.created.push(Created { place, comm, handle }));
        return Ok(Code::SUCCESS);
    }
    forming::created(place, &comm, handle)
}

fn in_group<T>(f: impl FnOnce(&mut Group) -> T) -> T {
    GROUP.with_borrow_mut(f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_as_often_as_it_starts() {
        start();
        start();
        assert_eq!(end(), Ok(Code::SUCCESS));
        assert_eq!(end(), Ok(Code::SUCCESS));
        assert!(end().unwrap_err().text.contains("not started"));
    }

    #[test]
    fn a_call_that_failed_fails_the_group_once() {
        start();
        for text in ["this", "that"] {
            let _ = noted::<()>(Err(Failure::argument(text)));
        }
        assert_eq!(end().unwrap_err().text, "this");
        start();
        assert_eq!(end(), Ok(Code::SUCCESS));
    }
}
