//! Calls that take long are said in the log, and calls that differ are found.
//!
//! A call that waits for another rank waits on the device, where nobody sees it. So a thread of the process looks at all its
//! communicators once a second: an event behind a call that is not complete after ten seconds has a line, and others later, at
//! twice the time each. Before a line, the rank asks the others which calls they have made. Their threads answer, also while
//! their programs sleep; a process that is stopped does not. So the line names the call, and the rank that has not made it.
//!
//! With `check_calls`, ranks tell each other every call as they make it, and whoever finds a difference ends its waits.

use std::{
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use mscclpp::{
    Event, Semaphore,
    engine::{CallOrder, Group, LastCall},
    errors::GpuError,
    gpu::fork::OfProcess,
};
use mscclpp_os::waiting::{FIRST_LOG, LongWait, say};
use parking_lot::Mutex;

use crate::{Error, Request, Result, plan::signature};

use super::{
    engine::Lengths,
    history::{Difference, History, LISTS, Words},
    meeting::purpose,
    served::{OfThisProcess, Served},
};

/// The time between two looks at all communicators, and the same if some of them check calls.
const PERIOD: Duration = Duration::from_secs(1);
const PERIOD_OF_CHECKS: Duration = Duration::from_millis(10);
/// How long before a line the other ranks are asked.
const ANSWERS: Duration = Duration::from_secs(2);

/// The first word that tells a sender that its message has another length than the receiver takes. Otherwise the word says
/// whether an answer is asked for.
const LENGTHS_DIFFER: u64 = 2;

static ALL: OfThisProcess<Watched> = Mutex::new(None);

/// The calls of a communicator, which are looked at until this is dropped.
pub(crate) struct Watch {
    watched: OfProcess<Arc<Watched>>,
    all: Arc<Mutex<Served<Watched>>>,
}

struct Watched {
    group: Group,
    checks: bool,
    order: Arc<CallOrder>,
    semaphores: Vec<Semaphore>,
    state: Mutex<State>,
    difference: OnceLock<Difference>,
}

struct State {
    history: History,
    /// For each rank, the calls that it was told.
    told: Vec<[u64; LISTS]>,
    /// The ranks that have answered since they were asked.
    answered: Vec<bool>,
    followed: Option<Followed>,
    /// The number of collectives that are known to be complete.
    complete: u64,
}

/// A call that was not complete when it was looked at.
struct Followed {
    /// None if a thread is putting calls into a stream, which can take long if the device's queue is full.
    event: Option<Event>,
    /// The number of collectives up to there.
    collectives: u64,
    since: Instant,
    /// When the next line is due.
    next: Duration,
    has_asked: bool,
}

impl Watch {
    /// Watches the calls of a group's ranks. `checks`: they are compared. `semaphores` are those by which they wait.
    pub(crate) fn new(
        group: &Group,
        checks: bool,
        order: &Arc<CallOrder>,
        semaphores: Vec<Semaphore>,
    ) -> Result<Self> {
        let ranks = group.ranks().len();
        let watched = Arc::new(Watched {
            group: group.telling(purpose::CALLS, 0),
            checks,
            order: Arc::clone(order),
            semaphores,
            state: Mutex::new(State {
                history: History::new(group.ranks().to_vec(), group.rank(), checks),
                told: vec![[0; LISTS]; ranks],
                answered: vec![false; ranks],
                followed: None,
                complete: 0,
            }),
            difference: OnceLock::new(),
        });
        let all = Served::of_process(&ALL);
        if ranks > 1 {
            Served::add(&all, &watched, "watch", look_at_all)?;
        }
        Ok(Self { watched: OfProcess::new(watched), all })
    }

    /// Notes requests that this rank is about to put into a stream, in their order, and tells the other ranks if calls are
    /// compared. Does not block.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a rank has made other calls.
    pub(crate) fn calls(&self, requests: &[Request<'_>]) -> Result<()> {
        let own = self.watched.group.rank();
        self.note(|history| {
            requests.iter().fold(None, |found, request| {
                let bytes = request.count.saturating_mul(request.data_type.size());
                let next = match request.kind.peer() {
                    // Nothing travels.
                    Some((peer, _)) if peer == own || bytes == 0 => None,
                    Some((peer, receives)) => history.message(peer, receives, bytes),
                    None => history.collective(signature(request)),
                };
                found.or(next)
            })
        })
    }

    /// Notes one collective, in the same way.
    pub(crate) fn call(&self, signature: Words) -> Result<()> {
        self.note(|history| history.collective(signature))
    }

    fn note(&self, note: impl FnOnce(&mut History) -> Option<Difference>) -> Result<()> {
        let watched = self.watched.here()?;
        let Watched { group, checks, .. } = &**watched;
        if group.ranks().len() == 1 {
            return Ok(());
        }
        let mut state = watched.state.lock();
        let found = note(&mut state.history);
        if *checks {
            for peer in group.others() {
                // If the peer has left, the call says so.
                let _ = state.tell(group, peer, false);
            }
        }
        drop(state);
        watched.found(found);
        watched.check()
    }

    /// Notes that a message has another length than this rank takes, and tells its sender.
    ///
    /// # Errors
    /// [`Error::Mismatch`], always.
    pub(crate) fn other_length(&self, Lengths { from, sent, taken }: Lengths) -> Result<()> {
        let watched = self.watched.here()?;
        let group = &watched.group;
        if let Some(peer) = group.ranks().iter().position(|rank| *rank == from) {
            let found = watched.state.lock().history.lengths(peer, true, sent, taken);
            if watched.found(Some(found)) {
                // If the peer has left, it needs to know nothing.
                let _ = group.tell(peer, &[LENGTHS_DIFFER, sent, taken]);
            }
        }
        watched.check()
    }

    /// Checks that no rank has made other calls, as far as that is known. Does not block.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub(crate) fn check(&self) -> Result<()> {
        let watched = self.watched.here()?;
        if watched.checks {
            watched.hear();
        }
        watched.check()
    }

    /// Takes what the other ranks have said, and does the same as [`Self::check`]. Does not block.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub(crate) fn hear(&self) -> Result<()> {
        let watched = self.watched.here()?;
        watched.hear();
        watched.check()
    }

    /// Waits until all ranks have made the calls that this one has made, if they are compared. `check` is called meanwhile.
    ///
    /// # Errors
    /// [`Error::Mismatch`]; [`GpuError::Timeout`] after `limit`; those of `check`.
    pub(crate) fn compare(&self, limit: Option<Duration>, check: impl Fn() -> Result<()>) -> Result<()> {
        let watched = self.watched.here()?;
        if !watched.checks {
            return Ok(());
        }
        let mut wait = LongWait::begin(FIRST_LOG);
        let begin = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            let has_all = watched.hear();
            watched.check()?;
            let missing = if has_all { watched.state.lock().history.missing() } else { None };
            let Some(missing) = missing else { return Ok(()) };
            check()?;
            if let Some(limit) = limit.filter(|limit| begin.elapsed() >= *limit) {
                let operation = format!("waiting for {missing},");
                return Err(GpuError::Timeout { operation, after: limit, remedy: "" }.into());
            }
            wait.log(Instant::now(), Some(watched.name()), || missing);
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(1));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Ok(ours) = self.watched.here() {
            self.all.lock().remove(ours);
        }
    }
}

impl State {
    /// Tells a peer the calls that it was not told, or if it `asks` or is asked all that are kept.
    fn tell(&mut self, group: &Group, peer: usize, asks: bool) -> Result<()> {
        let words = self.history.told(peer, &mut self.told[peer]);
        let words: Vec<u64> = std::iter::once(asks.into()).chain(words).collect();
        Ok(group.tell(peer, &words)?)
    }
}

impl Watched {
    /// This rank's number in the job.
    fn name(&self) -> usize {
        self.group.ranks()[self.group.rank()]
    }

    fn check(&self) -> Result<()> {
        let Some(Difference { peer, ours, theirs }) = self.difference.get().cloned() else { return Ok(()) };
        Err(Error::Mismatch { rank: self.name(), other: self.group.ranks()[peer], ours, theirs })
    }

    /// Keeps the first difference, and ends the waits of this rank. Returns whether this is the first.
    fn found(&self, difference: Option<Difference>) -> bool {
        let Some(difference) = difference else { return false };
        let is_first = self.difference.set(difference).is_ok();
        self.semaphores.iter().for_each(|semaphore| semaphore.abort("ranks made different calls"));
        is_first
    }

    /// Takes what the others have said, and answers. Returns false if some of them can say nothing any more.
    fn hear(&self) -> bool {
        let mut found = None;
        let mut state = self.state.lock();
        let mut all = true;
        for peer in self.group.others() {
            loop {
                match self.group.told_by(peer) {
                    Ok(Some(words)) => {
                        let Some((asks, words)) = words.split_first() else { continue };
                        if let (LENGTHS_DIFFER, [sent, taken]) = (*asks, words) {
                            found = found.or(Some(state.history.lengths(peer, false, *sent, *taken)));
                            continue;
                        }
                        match state.history.hear(peer, words) {
                            Ok(difference) => found = found.or(difference),
                            Err(problem) => {
                                let error = self.group.malformed(peer, problem);
                                tracing::warn!(target: "mscclpp::conn", rank = self.name(), %error, "calls are not compared");
                            }
                        }
                        state.answered[peer] = true;
                        if *asks != 0 && state.tell(&self.group, peer, false).is_err() {
                            all = false;
                        }
                    }
                    Ok(None) => break,
                    // The peer has left, or the job has failed: the error of a call says which.
                    Err(_) => {
                        all = false;
                        break;
                    }
                }
            }
        }
        drop(state);
        self.found(found);
        all
    }

    /// Looks at the calls. Returns what is to be said of the first that waits, and how long it has waited.
    fn look(&self, now: Instant) -> Option<(Duration, String)> {
        self.hear();
        // A thread that makes a call holds the order, and notes the call in the state. So none is noted while this looks.
        let mut state = self.state.lock();
        let State { history, followed, answered, complete, .. } = &mut *state;
        let is_complete = followed.as_ref().is_some_and(|followed| match &followed.event {
            Some(event) => event.query().unwrap_or(true),
            None => !matches!(self.order.last(), LastCall::BeingPut),
        });
        if is_complete && let Some(Followed { event: Some(_), collectives, .. }) = followed.take() {
            *complete = collectives;
        }
        let Some(followed) = followed else {
            let event = match self.order.last() {
                LastCall::Complete => return None,
                LastCall::UnderWay(event) => Some(event),
                LastCall::BeingPut => None,
            };
            let collectives = history.made();
            *followed = Some(Followed { event, collectives, since: now, next: FIRST_LOG, has_asked: false });
            return None;
        };
        let waited = now.saturating_duration_since(followed.since);
        if !followed.has_asked && waited + ANSWERS >= followed.next {
            followed.has_asked = true;
            answered.fill(false);
            for peer in self.group.others() {
                // If the peer has left, it does not answer.
                let _ = state.tell(&self.group, peer, true);
            }
            return None;
        }
        if waited < followed.next {
            return None;
        }
        followed.next = 2 * waited;
        followed.has_asked = false;
        Some((waited, history.waited_for(*complete, followed.collectives, answered)))
    }
}

/// Looks at all communicators of the process, as long as there are some.
fn look_at_all(served: &Mutex<Served<Watched>>) {
    loop {
        let mut served = served.lock();
        let all = served.all();
        if all.is_empty() {
            return;
        }
        let now = Instant::now();
        let said: Vec<_> = all.iter().filter_map(|it| Some((it.name(), it.look(now)?))).collect();
        let period = if all.iter().any(|it| it.checks) { PERIOD_OF_CHECKS } else { PERIOD };
        // Writing to the log may wait for a thread that drops a communicator, and that takes this lock.
        drop(served);
        for (rank, (waited, what)) in said {
            say(Some(rank), waited, &what);
        }
        thread::sleep(period);
    }
}
