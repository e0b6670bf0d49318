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
    /// What ranks do together, a thread for each communicator: this thread may have several ranks.
    together: Vec<(Arc<Comm>, Together)>,
    /// The first call that failed.
    failed: Option<Failure>,
}

type Together = JoinHandle<Result<(), Failure>>;

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
/// The first failure of the group. If a call has failed when it was made, none of the group's calls is put into a stream, and
/// communicators that still wait for other ranks in it, to be formed or to register memory, are given up.
/// [`Code::INVALID_USAGE`] if this thread has started none.
pub(crate) fn end() -> Result<Code, Failure> {
    let Some(group) = leave()? else { return Ok(Code::SUCCESS) };
    let give_up = group.failed.is_some();
    let created = wait_for(group.created, give_up);
    let done = finish(group.together, give_up);
    if let Some(failed) = group.failed {
        return Err(failed);
    }
    first(first(created, done.map(Code::from)), calls::submit(group.calls).map(Code::from))
}

/// `ncclGroupSimulateEnd`: ends the group, and gives back the calls that were not made; none where the group goes on outside.
///
/// # Errors
/// As [`end`].
pub(crate) fn end_without_calls() -> Result<Vec<Call>, Failure> {
    let Some(group) = leave()? else { return Ok(Vec::new()) };
    let give_up = group.failed.is_some();
    let created = wait_for(group.created, give_up);
    let done = finish(group.together, give_up);
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

/// The same for what ranks do together.
fn finish(together: Vec<(Arc<Comm>, Together)>, give_up: bool) -> Result<(), Failure> {
    if give_up {
        together.iter().filter(|(_, thread)| !thread.is_finished()).for_each(|(comm, _)| comm.abort());
    }
    join(together.into_iter().map(|(_, thread)| thread))
}

/// What all of them answer.
fn join(together: impl IntoIterator<Item = Together>) -> Result<(), Failure> {
    // All of them, whatever the first one says.
    let answers = together.into_iter().map(|thread| {
        thread
            .join()
            .unwrap_or_else(|_| Err(Failure::new(Code::INTERNAL_ERROR, "a thread of the group panicked")))
    });
    answers.fold(Ok(()), Result::and)
}

/// Does what waits for other ranks of a communicator that do the same: at once, or until the end of the group.
pub(crate) fn together(
    comm: &Arc<Comm>,
    what: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<Code, Failure> {
    if !in_group(|group| group.depth > 0) {
        return what().map(Code::from);
    }
    // One after the other, in the order in which they were called: threads would come in another one on each rank.
    let before = in_group(|group| {
        let at = group.together.iter().position(|(of, _)| Arc::ptr_eq(of, comm));
        at.map(|at| group.together.swap_remove(at).1)
    });
    let in_turn = move || {
        let before = join(before);
        before.and(what())
    };
    let thread = thread::Builder::new().name("mscclpp-nccl-group".to_owned()).spawn(in_turn);
    let thread = thread.map_err(|error| {
        Failure::new(Code::SYSTEM_ERROR, format!("no thread for a call of a group: {error}"))
    })?;
    in_group(|group| group.together.push((Arc::clone(comm), thread)));
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
    use std::{sync::mpsc, time::Duration};

    use mscclpp::Platform;

    use crate::{config::Settings, env::Env};

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
    fn what_ranks_of_a_communicator_do_together_they_do_in_the_order_of_the_calls() {
        let gpu = Platform::Sim.gpu(0).unwrap();
        let comm = || Comm::new(gpu.clone(), Settings::of(Env::of_process().unwrap()));
        let (one, other) = (comm(), comm());
        let (done, order) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        start();
        for i in 0..3u64 {
            let done = done.clone();
            let what = move || {
                thread::sleep(Duration::from_millis(40 / (i + 1)));
                done.send(i).map_err(|_| Failure::usage("nobody listens"))
            };
            together(&one, what).unwrap();
        }
        // That of another communicator waits for none of them.
        together(&other, move || ready.send(()).map_err(|_| Failure::usage("nobody listens"))).unwrap();
        is_ready.recv().unwrap();
        assert_eq!(end(), Ok(Code::SUCCESS));
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2]);

        start();
        together(&one, || Err(Failure::usage("the first"))).unwrap();
        together(&one, move || done.send(7).map_err(|_| Failure::usage("nobody listens"))).unwrap();
        assert_eq!(end().unwrap_err().text, "the first");
        assert_eq!(order.recv(), Ok(7), "other ranks may wait for it");
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
