//! `ncclGroupStart` and `ncclGroupEnd`: calls that a thread makes in between are carried out together, at the end.

use std::{
    cell::RefCell,
    mem,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use crate::{
    abi::{Code, CollConfig, Handle},
    calls::{self, Arguments, Call, What},
    comm::{self, Comm},
    failure::Failure,
    one_sided::{self, OneSided},
    pointers::OutPointer,
    submit,
};

/// The state of a thread's group.
#[derive(Default)]
struct Group {
    /// How many calls of `ncclGroupStart` have had no `ncclGroupEnd` yet.
    depth: usize,
    calls: Vec<Call>,
    one_sided: Vec<OneSided>,
    created: Vec<Created>,
    /// Calls that block until other ranks make them too. Those of each communicator run on another thread, as this thread may
    /// have several of the ranks.
    together: Vec<(Arc<Comm>, Together)>,
    /// The first call that failed.
    failed: Option<Failure>,
}

type Together = JoinHandle<Result<(), Failure>>;

/// The result of what the calls of a group began before its end.
type Waited = Result<Code, Failure>;

/// A communicator that was created in a group, whose end waits until it is formed.
struct Created {
    place: OutPointer<Handle>,
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
/// The first failure of the group. If a call failed when it was made, none of the group's calls is put into a stream, and
/// communicators of the group that still wait for other ranks, to be formed or to register memory, are aborted.
/// [`Code::INVALID_USAGE`] if this thread has no group.
pub(crate) fn end() -> Result<Code, Failure> {
    let Some((group, waited)) = leave_and_wait()? else { return Ok(Code::SUCCESS) };
    let submitted = submit::all(group.calls).map(Code::from);
    // SAFETY: the callers of `make_one_sided` promised what this asks for.
    let one_sided = unsafe { one_sided::submit(&group.one_sided) };
    first(waited, first(submitted, one_sided))
}

/// `ncclGroupSimulateEnd`: ends the group without its calls, and returns them. A group inside another returns none.
///
/// # Errors
/// The same as of [`end`].
pub(crate) fn end_without_calls() -> Result<Vec<Call>, Failure> {
    let Some((group, waited)) = leave_and_wait()? else { return Ok(Vec::new()) };
    waited.map(|_| group.calls)
}

/// Ends a group. If it is not inside another one, waits for what its calls began, and returns the group and the result.
///
/// # Errors
/// The failure of a call when it was made: then what other ranks still wait for is aborted, as some of them may never come.
fn leave_and_wait() -> Result<Option<(Group, Waited)>, Failure> {
    let Some(mut group) = leave()? else { return Ok(None) };
    let (created, together) = (mem::take(&mut group.created), mem::take(&mut group.together));
    if let Some(failed) = &group.failed {
        let why = format!("the group of this communicator failed: {}", failed.text);
        for created in &created {
            created.comm.abort_unformed(&why);
        }
        let waiting = together.iter().filter(|(_, thread)| !thread.is_finished()).map(|(comm, _)| comm);
        waiting.for_each(|comm| comm.abort(&why));
    }
    let created = wait_for(created);
    let done = join(together.into_iter().map(|(_, thread)| thread));
    match group.failed.take() {
        Some(failed) => Err(failed),
        None => Ok(Some((group, first(created, done.map(Code::from))))),
    }
}

/// Waits until the created communicators are formed, or have failed.
fn wait_for(created: Vec<Created>) -> Result<Code, Failure> {
    // Each one is waited for, even if an earlier one failed.
    let answers =
        created.into_iter().map(|Created { place, comm, handle }| finish_creation(place, &comm, handle));
    answers.fold(Ok(Code::SUCCESS), first)
}

/// Waits for threads to end, and returns the first failure among them.
fn join(together: impl IntoIterator<Item = Together>) -> Result<(), Failure> {
    // Each one is waited for, even if an earlier one failed.
    let answers = together.into_iter().map(|thread| {
        thread
            .join()
            .unwrap_or_else(|_| Err(Failure::new(Code::INTERNAL_ERROR, "a thread of the group panicked")))
    });
    answers.fold(Ok(()), Result::and)
}

/// Runs `what`, which blocks until other ranks of the communicator do the same: at once, or in a group on a thread for which the
/// group's end waits.
pub(crate) fn together(
    comm: &Arc<Comm>,
    what: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<Code, Failure> {
    if !in_group(|group| group.depth > 0) {
        return what().map(Code::from);
    }
    // Calls for one communicator run one after the other, in the order in which they were made: if threads ran them at the same
    // time, each rank might have another order.
    let before = in_group(|group| {
        let at = group.together.iter().position(|(of, _)| Arc::ptr_eq(of, comm));
        at.map(|at| group.together.swap_remove(at).1)
    });
    let before = Arc::new(Mutex::new(before));
    let (taken, gpu) = (Arc::clone(&before), comm.gpu.clone());
    let in_turn = move || {
        let before = join(taken.lock().take());
        before.and(gpu.make_current().map_err(Failure::from).and_then(|()| what()))
    };
    let thread = thread::Builder::new().name("mscclpp-nccl-group".to_owned()).spawn(in_turn);
    let thread = thread.map_err(|error| {
        // The group's end still waits for the calls before.
        in_group(|group| {
            group.together.extend(before.lock().take().map(|before| (Arc::clone(comm), before)));
        });
        Failure::new(Code::SYSTEM_ERROR, format!("no thread for a call of a group: {error}"))
    })?;
    in_group(|group| group.together.push((Arc::clone(comm), thread)));
    Ok(Code::SUCCESS)
}

/// Ends a group, and returns it if it is not inside another one.
fn leave() -> Result<Option<Group>, Failure> {
    GROUP.with_borrow_mut(|group| {
        group.depth = group
            .depth
            .checked_sub(1)
            .ok_or_else(|| Failure::usage("this thread has not called ncclGroupStart"))?;
        Ok((group.depth == 0).then(|| mem::take(group)))
    })
}

/// Joins two results: a failure comes before `ncclInProgress`, which comes before success.
fn first(one: Result<Code, Failure>, other: Result<Code, Failure>) -> Result<Code, Failure> {
    match (one?, other?) {
        (Code::SUCCESS, other) => Ok(other),
        (one, _) => Ok(one),
    }
}

/// Makes a call of one of NCCL's functions: checks it, and puts it into its stream at once or at the end of the thread's group.
///
/// # Safety
/// NCCL's own conditions hold: the addresses are memory that the communicator's device reaches, of the size that follows from the
/// call. The memory lives until the call is complete, or as long as a graph that captured it. The stream is one of that device.
pub(crate) unsafe fn make(what: What, arguments: Arguments) -> Result<Code, Failure> {
    // SAFETY: the caller's promise.
    unsafe { make_with(what, arguments, std::ptr::null()) }
}

/// Makes a call as [`make`] does, with a configuration that says how it is to be done.
///
/// # Safety
/// The same as of [`make`]; and `config` is null, or points to as many bytes as its first field says, with a list `ext` of valid
/// elements, and an event of the communicator's device that lives as long as the call's memory.
pub(crate) unsafe fn make_with(
    what: What,
    arguments: Arguments,
    config: *const CollConfig,
) -> Result<Code, Failure> {
    // SAFETY: the caller's promise.
    call(noted(unsafe { calls::checked(what, arguments, config) })?)
}

/// Makes a one-sided call: at once, or at the end of the group, after its other calls.
///
/// # Safety
/// The same as of [`make`].
pub(crate) unsafe fn make_one_sided(call: Result<OneSided, Failure>) -> Result<Code, Failure> {
    let call = noted(call)?;
    if in_group(|group| group.depth > 0) {
        in_group(|group| group.one_sided.push(call));
        return Ok(Code::SUCCESS);
    }
    // SAFETY: the caller's promise.
    unsafe { one_sided::submit(std::slice::from_ref(&call)) }
}

/// Submits a call of a communicator: at once, or at the end of the group.
fn call(call: Call) -> Result<Code, Failure> {
    if in_group(|group| group.depth > 0) {
        let other = |before: &Call| {
            Arc::ptr_eq(&before.comm, &call.comm)
                && before.launch_event.is_some_and(|of| Some(of) != call.launch_event)
        };
        if call.launch_event.is_some() && in_group(|group| group.calls.iter().any(other)) {
            return noted(Err(Failure::usage(
                "a group has two events as launchCompletionEvent in ncclCollConfig_t; a communicator can have one in a group",
            )));
        }
        in_group(|group| group.calls.push(call));
        return Ok(Code::SUCCESS);
    }
    submit::one(&call).map(Code::from)
}

/// Notes a call that failed when it was made, so that the end of the group fails with it. Returns `made`.
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

/// Writes the handle of a communicator that is being formed to its place. Waits for the communicator at once, or at the end of
/// the group.
pub(crate) fn created(place: OutPointer<Handle>, comm: Arc<Comm>) -> Result<Code, Failure> {
    let handle = comm::add(&comm);
    place.set(handle);
    if in_group(|group| group.depth > 0) {
        in_group(|group| group.created.push(Created { place, comm, handle }));
        return Ok(Code::SUCCESS);
    }
    finish_creation(place, &comm, handle)
}

/// Finishes a function that creates a communicator, and returns its code: blocks until the communicator is formed, unless its
/// settings say that calls do not block. If forming failed, removes the handle.
fn finish_creation(place: OutPointer<Handle>, comm: &Arc<Comm>, handle: Handle) -> Result<Code, Failure> {
    if !comm.settings.blocking {
        return Ok(Code::IN_PROGRESS);
    }
    match comm.wait_formed() {
        Ok(_) => Ok(Code::SUCCESS),
        Err(failure) => {
            place.set(std::ptr::null_mut());
            // It fails if the program has destroyed the communicator already.
            let _ = comm::remove(handle);
            Err(failure)
        }
    }
}

fn in_group<T>(f: impl FnOnce(&mut Group) -> T) -> T {
    GROUP.with_borrow_mut(f)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use mscclpp::{Bootstrap, LocalBootstrap, Platform};

    use crate::{config::Settings, env::Env};

    use super::*;

    #[test]
    fn a_group_ends_as_often_as_it_starts() {
        start();
        start();
        assert_eq!(end(), Ok(Code::SUCCESS));
        assert_eq!(end(), Ok(Code::SUCCESS));
        assert!(end().unwrap_err().text.contains("has not called ncclGroupStart"));
    }

    fn comm() -> Arc<Comm> {
        let env = Env::of_process().unwrap();
        Comm::new(Platform::Sim.gpu(0).unwrap(), Settings::of(env), env)
    }

    #[test]
    fn other_ranks_are_told_which_failure_of_a_group_ended_a_communicator() {
        let mut ranks = LocalBootstrap::group(2).into_iter();
        let (here, there) = (ranks.next().unwrap(), ranks.next().unwrap());
        let (comm, mut handle) = (comm(), std::ptr::null_mut());
        comm.met(&(Arc::new(here) as Arc<dyn Bootstrap>));
        start();
        // SAFETY: the handle lives until the group has ended.
        created(unsafe { OutPointer::at(&raw mut handle, "comm").unwrap() }, Arc::clone(&comm)).unwrap();
        let _ = noted::<()>(Err(Failure::argument("this call")));
        let forms = thread::spawn(move || {
            mscclpp_test_support::until("the abort", || comm.aborted().is_some());
            comm.set_outcome(Err(Failure::usage("aborted")));
        });
        assert_eq!(end().unwrap_err().text, "this call");
        forms.join().unwrap();
        let told = there.failure().unwrap().to_string();
        assert!(told.contains("the group of this communicator failed: this call"), "{told}");
    }

    #[test]
    fn what_ranks_of_a_communicator_do_together_they_do_in_the_order_of_the_calls() {
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
        // A call for another communicator waits for none of these.
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
