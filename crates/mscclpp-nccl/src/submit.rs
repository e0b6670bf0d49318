//! Puts checked calls into their streams.

use std::{slice, sync::Arc};

use mscclpp::{Event, Stream};
use mscclpp_collectives::{Request, Selector};

use crate::{
    abi::{Code, Handle},
    calls::Call,
    choice::Choice,
    comm::{Backend, Comm},
    failure::Failure,
    fallback,
    ours::Ours,
    streams,
};

/// Puts calls into their streams: the calls of each communicator together, communicators in the order of their first calls, and
/// last those that go to NCCL. Waits for no other rank.
pub(crate) fn all(calls: Vec<Call>) -> Result<(), Failure> {
    let (handed, mut calls): (Vec<Call>, _) = calls.into_iter().partition(|call| call.request.is_none());
    let mut answer = Ok(());
    while let Some(first) = calls.first() {
        let comm = Arc::clone(&first.comm);
        let (own, others) = calls.into_iter().partition(|call| Arc::ptr_eq(&call.comm, &comm));
        calls = others;
        // The other communicators' calls are made even if these fail: other ranks may wait for them.
        answer = answer.and(submit_of(&own));
    }
    answer.and(submit_of(&handed))
}

/// Puts a call into its stream.
pub(crate) fn one(call: &Call) -> Result<(), Failure> {
    submit_of(slice::from_ref(call))
}

/// Puts calls into their streams that are all of one communicator, or all go to NCCL.
fn submit_of(calls: &[Call]) -> Result<(), Failure> {
    let [Call { comm, .. }, ..] = calls else { return Ok(()) };
    let submitted = match comm.backend()? {
        Backend::Handed(_) => fallback::submit(calls),
        Backend::Ours(ours) => submit_ours(comm, ours, calls),
    };
    if let Err(failure) = &submitted
        && failure.code == Code::REMOTE_ERROR
    {
        calls.iter().for_each(|call| call.comm.fail(failure));
    }
    submitted
}

fn submit_ours(comm: &Comm, ours: &Ours, calls: &[Call]) -> Result<(), Failure> {
    // SAFETY: the caller of `group::make` promised streams of the communicator's device.
    let open = |handle: Handle| unsafe { streams::of(&comm.gpu, handle) };
    // A group has one event for a communicator. Its first launch records it.
    let event = calls.iter().find_map(|call| call.launch_event);
    // SAFETY: the caller of `group::make_with` promised a live event of the communicator's device.
    let mut event = event.map(|event| unsafe { streams::event_of(&comm.gpu, event) }).transpose()?;
    if let [Call { request: Some(request), arguments, choice, .. }] = calls {
        let handle = arguments.stream;
        return enqueue(comm, ours, slice::from_ref(request), (*choice, event), (handle, &open(handle)?));
    }
    let mut handles: Vec<Handle> = Vec::new();
    for call in calls {
        if !handles.contains(&call.arguments.stream) {
            handles.push(call.arguments.stream);
        }
    }
    let Some(handle) = handles.first().copied() else { return Ok(()) };
    let streams = handles.into_iter().map(open).collect::<Result<Vec<Stream>, Failure>>()?;
    // If there are several streams, all calls go into the first: it waits for the others before the calls, and the others wait
    // for it after them.
    let Some((stream, others)) = streams.split_first() else { return Ok(()) };
    stream.join(&others.iter().collect::<Vec<_>>(), || {
        by_choice(calls).into_iter().try_for_each(|(choice, requests)| {
            enqueue(comm, ours, &requests, (choice, event.take()), (handle, stream))
        })
    })
}

/// The requests of a group, those that are done alike together. Those without a configuration come last, as sends and receives
/// are among them, which each rank may give at another place of the group.
fn by_choice(calls: &[Call]) -> Vec<(Choice, Vec<Request<'static>>)> {
    let mut all: Vec<(Choice, Vec<_>)> = Vec::new();
    for Call { request, choice, .. } in calls {
        match all.iter_mut().find(|(other, _)| other == choice) {
            Some((_, requests)) => requests.extend(request),
            None => all.push((*choice, request.iter().copied().collect())),
        }
    }
    // The sort is stable: the others stay in the order of their first calls, which is that of all ranks.
    all.sort_by_key(|(choice, _)| *choice == Choice::default());
    all
}

fn enqueue(
    comm: &Comm,
    ours: &Ours,
    requests: &[Request<'static>],
    (choice, event): (Choice, Option<Event>),
    (handle, stream): (Handle, &Stream),
) -> Result<(), Failure> {
    let timed = ours.statistics.begin(&comm.gpu, stream, requests);
    ours.recorder.put(&comm.gpu, (handle, stream), requests, || {
        // SAFETY: the caller of `group::make` promised for each call what `enqueue` asks for.
        let put = unsafe {
            let collectives = &ours.collectives;
            match (&event, choice == Choice::default()) {
                (None, true) => collectives.enqueue(requests, stream),
                (None, false) => collectives.enqueue_with(requests, stream, &choice),
                (Some(event), usual) => {
                    let selector = (!usual).then_some(&choice as &dyn Selector);
                    collectives.enqueue_recording(requests, stream, selector, event)
                }
            }
        };
        Ok(put?)
    })?;
    ours.statistics.end(stream, timed);
    Ok(())
}
