//! The objects that the launches of a stream keep alive until they are complete.
//!
//! 1. **Owners are added after their launch**, with its number, while the launch's arguments still hold them. So a
//!    thread that reads the number and then finds the stream idle knows that all launches up to that number are
//!    complete.
//! 2. **An object is kept once**, with the number of its last launch. A launch of objects that are already kept costs
//!    no driver call. A launch with a new object queries the recorded event, or records one; so does every 64th launch.
//! 3. **They are dropped** when the stream is synchronised, when a query finds it idle, or when the event is reached.
//!    No lock is held then, because their drop may do anything. What is left when the stream is dropped goes to the
//!    device, with an event after it. The default stream, which is never dropped, is asked when memory is
//!    allocated. Of streams of others only the events are asked, because such a stream may be gone. For the stream of a thread,
//!    which goes with the thread, an event is recorded behind each launch.

use parking_lot::Mutex;

use super::DriverStream;
use crate::{
    Owner,
    backend::EventBackend,
    failed::{self, Failed, Untold},
};

/// The number of launches without a new object after which the event is queried.
const LAUNCHES_PER_LOOK: u64 = 64;

/// Owners, and the launches that need them. It knows no driver.
#[derive(Default)]
struct Ledger {
    /// How many launches there were that keep something.
    launches: u64,
    kept: Vec<Kept>,
    /// The failed objects of complete launches.
    failed: Failed,
}

struct Kept {
    owner: Owner,
    last_launch: u64,
}

impl Ledger {
    /// Adds a launch that needs `owners`. Returns whether one of them is new.
    fn add(&mut self, owners: &[Owner]) -> bool {
        self.launches += 1;
        let known = self.kept.len();
        // Launches with the same arguments find them in the same order: each behind the one before.
        let mut next = 0;
        for owner in owners {
            let is = |kept: &Kept| std::ptr::addr_eq(&raw const *kept.owner, &raw const **owner);
            let place = match self.kept.get(next) {
                Some(kept) if is(kept) => Some(next),
                _ => self.kept.iter().position(is),
            };
            match place {
                Some(place) => self.kept[place].last_launch = self.launches,
                None => self.kept.push(Kept { owner: owner.clone(), last_launch: self.launches }),
            }
            next = place.map_or(self.kept.len(), |place| place + 1);
        }
        self.kept.len() > known
    }

    /// Takes the objects that no launch after that number needs. The launches up to it are complete.
    fn take(&mut self, complete: u64) -> Vec<Owner> {
        let done = self.remove(complete);
        done.iter().for_each(|owner| self.failed.note(owner));
        done
    }

    /// Removes the objects that no launch after that number needs, complete or not.
    fn remove(&mut self, last: u64) -> Vec<Owner> {
        let (removed, kept) = self.kept.drain(..).partition(|kept| kept.last_launch <= last);
        self.kept = kept;
        Vec::into_iter(removed).map(|kept: Kept| kept.owner).collect()
    }
}

/// The objects that the launches of one stream keep.
pub(crate) struct InUse<E> {
    state: Mutex<State<E>>,
}

struct State<E> {
    ledger: Ledger,
    event: Option<E>,
    /// The launch that the event was recorded behind, if it is not known to be reached.
    marked: Option<u64>,
}

impl<E> Default for InUse<E> {
    fn default() -> Self {
        Self { state: Mutex::new(State { ledger: Ledger::default(), event: None, marked: None }) }
    }
}

impl<E: EventBackend> InUse<E> {
    /// Notes a launch of `stream`, to which this belongs. It needs `owners`, which the caller holds until this returns.
    pub(crate) fn add(&self, stream: &impl DriverStream<Event = E>, owners: &[Owner]) {
        if owners.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let is_new = state.ledger.add(owners);
        let looks = is_new || state.ledger.launches.is_multiple_of(LAUNCHES_PER_LOOK);
        let done = if looks || stream.is_of_a_thread() { state.look(stream) } else { Vec::new() };
        drop(state);
        drop(done);
    }

    /// Returns the objects that are kept now.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.state.lock().ledger.kept.iter().map(|kept| kept.owner.clone()).collect()
    }

    /// Takes the objects that have failed and are not kept any more.
    pub(crate) fn take_failed(&self) -> Vec<Owner> {
        self.state.lock().ledger.failed.take()
    }

    /// The number of the last launch. Zero while nothing is kept.
    pub(crate) fn last_launch(&self) -> u64 {
        let state = self.state.lock();
        if state.ledger.kept.is_empty() { 0 } else { state.ledger.launches }
    }

    /// The stream was idle at a moment after `last_launch` said so.
    pub(crate) fn release(&self, last_launch: u64) {
        if last_launch > 0 {
            let done = self.state.lock().ledger.take(last_launch);
            drop(done);
        }
    }

    /// Drops everything, if `stream`, whose this is, is idle. Makes no call of the driver if nothing is kept.
    pub(crate) fn sweep(&self, stream: &impl DriverStream<Event = E>) {
        let launches = self.last_launch();
        // To ask whether the default stream is idle would break the capture of a stream that synchronises with it.
        if launches > 0 && stream.is_capturing().is_ok_and(|capturing| !capturing) && stream.is_idle() {
            self.release(launches);
        }
    }

    /// Drops what the recorded event has reached. Asks nothing of the stream, which may be gone.
    pub(crate) fn sweep_marked(&self) {
        let done = self.state.lock().take_reached();
        drop(done);
    }

    /// All that is kept: the stream is being dropped.
    pub(crate) fn take_all(&mut self) -> Vec<Owner> {
        self.state.get_mut().ledger.remove(u64::MAX)
    }
}

impl<E: EventBackend> State<E> {
    /// Takes the objects that are not needed any more according to the event, and records it anew when it was reached. A
    /// failure of the driver keeps all objects: the calls that return errors will report it.
    fn look(&mut self, stream: &impl DriverStream<Event = E>) -> Vec<Owner> {
        // In a capture of somebody else, an event would become part of that.
        if !stream.is_capturing().is_ok_and(|capturing| !capturing) {
            return Vec::new();
        }
        let done = self.take_reached();
        if self.marked.is_some() && !stream.is_of_a_thread() {
            return done;
        }
        if self.event.is_none() {
            self.event = stream.new_event().ok();
        }
        if let Some(event) = &self.event
            && stream.record_event(event).is_ok()
        {
            self.marked = Some(self.ledger.launches);
        }
        done
    }

    /// Takes the objects that are not needed any more if the event is reached, which then marks nothing.
    fn take_reached(&mut self) -> Vec<Owner> {
        let (Some(event), Some(marked)) = (&self.event, self.marked) else { return Vec::new() };
        if !event.query().unwrap_or(false) {
            return Vec::new();
        }
        self.marked = None;
        self.ledger.take(marked)
    }
}

/// The objects that launches of dropped streams need, with an event after these launches.
pub(crate) struct LeftBehind<E> {
    batches: Mutex<Vec<(E, Vec<Owner>)>>,
    /// The objects without an event, which are kept until the device is waited for.
    unknown: Mutex<Unknown>,
    /// The failures of complete launches of these streams.
    failed: Mutex<Untold>,
}

#[derive(Default)]
struct Unknown {
    /// How many there ever were.
    count: u64,
    /// Each with its place among all that there ever were.
    owners: Vec<(u64, Owner)>,
}

impl<E> Default for LeftBehind<E> {
    fn default() -> Self {
        Self { batches: Mutex::default(), unknown: Mutex::default(), failed: Mutex::default() }
    }
}

impl<E: EventBackend> LeftBehind<E> {
    /// Takes over what `stream`, which is being dropped, still keeps. Does not wait.
    pub(crate) fn take_over(&self, stream: &impl DriverStream<Event = E>, owners: Vec<Owner>) {
        let device = stream.device_id();
        let capturing = stream.is_capturing().unwrap_or(true);
        if !capturing && stream.is_idle() {
            failed::leave(&owners, &self.failed);
            return;
        }
        let event = stream.new_event().ok().filter(|event| !capturing && stream.record_event(event).is_ok());
        let objects = owners.len();
        match event {
            Some(event) => {
                tracing::debug!(
                    target: "mscclpp::gpu", device, objects,
                    "a stream was dropped at work; what its launches need is kept until they are complete"
                );
                self.batches.lock().push((event, owners));
            }
            None => {
                tracing::warn!(
                    target: "mscclpp::gpu", device, objects,
                    "a stream was dropped, and the driver does not tell whether its launches are complete; what they \
                     need is kept for good"
                );
                std::mem::forget(owners);
            }
        }
    }

    /// Takes over what `stream` has not told, which is being dropped or is gone.
    pub(crate) fn take_over_failed(&self, stream: &InUse<E>) {
        let failed = stream.take_failed();
        failed::log_untold(&failed);
        failed::leave(&failed, &self.failed);
    }

    /// Takes the failures of the objects that dropped streams kept.
    pub(crate) fn take_failed(&self) -> Vec<Owner> {
        self.failed.lock().take()
    }

    /// Takes over what launches of a stream of others need, which was destroyed: nothing can be recorded in it now.
    pub(crate) fn take_over_gone(&self, stream: &InUse<E>) {
        self.take_over_failed(stream);
        let mut state = stream.state.lock();
        let known = state.marked.take().map_or(Vec::new(), |marked| state.ledger.remove(marked));
        if let Some(event) = state.event.take()
            && !known.is_empty()
        {
            self.batches.lock().push((event, known));
        }
        let mut unknown = self.unknown.lock();
        for owner in state.ledger.remove(u64::MAX) {
            unknown.count += 1;
            let place = unknown.count;
            unknown.owners.push((place, owner));
        }
    }

    /// How many there were so far that are kept until the device is waited for.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.lock().count
    }

    /// The device was waited for after `last` was [`LeftBehind::unknown`].
    pub(crate) fn release_unknown(&self, last: u64) {
        let done: Vec<Owner> = {
            let owners = &mut self.unknown.lock().owners;
            owners.extract_if(.., |(place, _)| *place <= last).map(|(_, owner)| owner).collect()
        };
        failed::leave(&done, &self.failed);
    }

    /// Drops what is not needed any more. Costs next to nothing if there is nothing.
    pub(crate) fn sweep(&self) {
        let mut done = Vec::new();
        {
            let mut batches = self.batches.lock();
            let mut index = 0;
            while index < batches.len() {
                if batches[index].0.query().unwrap_or(false) {
                    done.push(batches.swap_remove(index));
                } else {
                    index += 1;
                }
            }
        }
        done.into_iter().for_each(|(_, owners)| failed::leave(&owners, &self.failed));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::object::Kept;

    #[test]
    fn an_object_goes_with_its_last_launch() {
        let mut ledger = Ledger::default();
        let [a, b]: [Owner; 2] = [Arc::new(Kept("a")), Arc::new(Kept("b"))];
        assert!(ledger.add(&[a.clone(), b.clone()]) && !ledger.add(std::slice::from_ref(&b)));
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (2, 2), "each is kept once");
        assert_eq!(ledger.take(0).len(), 0);
        let done = ledger.take(1);
        assert!(done.len() == 1 && std::ptr::addr_eq(&raw const *done[0], &raw const *a));
        assert_eq!(ledger.take(1).len(), 0, "the second launch needs b");
        assert!(ledger.add(std::slice::from_ref(&a)), "it is new again");
        assert_eq!(ledger.take(3).len(), 2);
        drop(done);
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 1));
    }

    #[test]
    fn the_same_owner_twice_in_a_launch_is_one() {
        let mut ledger = Ledger::default();
        let owner: Owner = Arc::new(Kept(7u8));
        ledger.add(&[owner.clone(), owner.clone()]);
        assert_eq!(ledger.take(1).len(), 1);
    }
}
