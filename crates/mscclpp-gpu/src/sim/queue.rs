//! The operations of a stream, and the thread that carries them out.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    launch::Launch,
    races::{Order, Point},
};
use crate::{
    DevicePtr, Error, Owner, Result, access,
    failed::{self, Failed, Untold},
};

/// One operation of a stream, with its arguments by value.
#[derive(Clone)]
pub(super) enum Op {
    Copy { dst: DevicePtr, src: DevicePtr, bytes: u64 },
    Fill { dst: DevicePtr, bytes: u64, value: u8 },
    WriteU64 { dst: DevicePtr, value: u64 },
    Launch(Arc<Launch>),
    Graph(Arc<[Op]>),
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
}

impl Op {
    fn run(&self, order: &Order) -> Result<()> {
        match self {
            Self::Copy { dst, src, bytes } => {
                order.copies(*dst, *src, *bytes)?;
                // SAFETY: whoever submitted it promised valid ranges until now ([`crate::Stream::copy`]).
                unsafe { access::copy(*dst, *src, *bytes) };
            }
            Self::Fill { dst, bytes, value } => {
                order.fills(*dst, *bytes)?;
                // SAFETY: the same as above.
                unsafe { access::fill(*dst, *bytes, *value) };
            }
            Self::WriteU64 { dst, value } => {
                order.publishes(*dst, *value, || {
                    // SAFETY: as above, and submitting compared the alignment. That all earlier work is visible with the
                    // value holds because it was done by this thread, or by threads which it joined (`Launch::run`).
                    unsafe { access::store_behind(*dst, *value) };
                });
            }
            Self::Launch(launch) => launch.run(order)?,
            Self::Graph(ops) => ops.iter().try_for_each(|op| op.run(order))?,
            Self::Record(mark) => mark.reach(Ok(Instant::now()), order.point()),
            Self::Wait(mark) => order.join(&mark.wait()?),
        }
        Ok(())
    }

    /// How many operations it is: those of a graph are counted one by one.
    fn count(&self) -> usize {
        match self {
            Self::Graph(ops) => ops.iter().map(Self::count).sum(),
            _ => 1,
        }
    }

    /// Visits the objects that its launches keep.
    fn each_owner(&self, visit: &mut dyn FnMut(&Owner)) {
        match self {
            Self::Launch(launch) => launch.owners().iter().for_each(visit),
            Self::Graph(ops) => ops.iter().for_each(|op| op.each_owner(visit)),
            _ => {}
        }
    }

    /// Ends the operation in a stream that has failed: no thread may wait for a mark for ever.
    fn skip(&self, error: &Error) {
        if let Self::Record(mark) = self {
            mark.reach(Err(error.clone()), Point::default());
        }
    }
}

/// One recorded point: the time when the stream reached it, or the error that the stream had by then.
#[derive(Default)]
pub(super) struct Mark {
    reached: Mutex<Option<(Result<Instant>, Point)>>,
    changed: Condvar,
}

impl Mark {
    pub(super) fn reach(&self, time: Result<Instant>, point: Point) {
        *self.reached.lock() = Some((time, point));
        self.changed.notify_all();
    }

    /// Blocks until the point is reached. It is recorded already, and a stream always reaches the end of its queue unless
    /// a kernel in it never ends, so this waits exactly as long as that kernel runs.
    pub(super) fn wait(&self) -> Result<Point> {
        let mut reached = self.reached.lock();
        loop {
            match &*reached {
                Some((time, point)) => return time.clone().map(|_| point.clone()),
                None => self.changed.wait(&mut reached),
            }
        }
    }

    /// Returns when it was reached, which the host then knows.
    pub(super) fn get(&self) -> Option<Result<Instant>> {
        let (time, point) = self.reached.lock().clone()?;
        point.is_known_to_host();
        Some(time)
    }
}

/// An ordered queue and how far its worker is.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    submitted: Condvar,
    completed: Condvar,
    order: Order,
}

/// The most operations that wait in a stream, those of its graphs counted one by one. Submitting more waits until the first
/// are complete. A driver's queue has about as much room, so a program that fills the queue of one rank before another rank
/// has begun hangs here as it does on GPUs.
pub(super) const MOST_PENDING: usize = 1024;

#[derive(Default)]
struct State {
    /// The operations, each with the point of the host when it submitted them.
    pending: VecDeque<(Op, Point)>,
    /// How many operations these are.
    waiting: usize,
    /// The operation that the worker carries out now.
    running: Option<Op>,
    submitted: u64,
    completed: u64,
    /// The first error; after it operations are skipped.
    error: Option<Error>,
    error_was_reported: bool,
    failed: Failed,
    capture: Option<Capture>,
    closed: bool,
}

#[derive(Default)]
struct Capture {
    ops: Vec<Op>,
    token: Arc<()>,
}

/// Names a capture; dead when that has ended.
pub(super) type CaptureToken = Weak<()>;

impl State {
    fn enqueue(&mut self, op: Op) {
        self.waiting += op.count();
        self.pending.push_back((op, Point::of_host()));
        self.submitted += 1;
    }

    fn check(&mut self) -> Result<()> {
        match &self.error {
            Some(error) => {
                self.error_was_reported = true;
                Err(error.clone())
            }
            None => Ok(()),
        }
    }

    fn refuse_capture(&self, call: &str) -> Result<()> {
        match self.capture {
            Some(_) => {
                Err(Error::invalid(format!("{call} of a stream that is capturing; end the capture first")))
            }
            None => Ok(()),
        }
    }
}

impl Queue {
    /// Makes the queue of a stream of the device.
    pub(super) fn new(device: usize) -> Self {
        Self { order: Order::new(device), ..Self::default() }
    }

    pub(super) fn submit(&self, op: Op) -> Result<()> {
        let mut state = self.with_room()?;
        match &mut state.capture {
            Some(capture) => capture.ops.push(op),
            None => {
                self.order.is_used();
                state.enqueue(op);
                self.submitted.notify_one();
            }
        }
        Ok(())
    }

    /// Submits `op`, unless the stream is capturing: then it only returns the name of the capture.
    pub(super) fn submit_outside_capture(&self, op: Op) -> Result<Option<CaptureToken>> {
        let mut state = self.with_room()?;
        if let Some(capture) = &state.capture {
            return Ok(Some(Arc::downgrade(&capture.token)));
        }
        state.enqueue(op);
        self.submitted.notify_one();
        Ok(None)
    }

    /// Waits until the queue has room for an operation, and returns the state, unless the stream has failed. It waits as long
    /// as the operations in front do, whose waits have bounds of their own.
    fn with_room(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        while state.waiting >= MOST_PENDING && state.capture.is_none() {
            self.completed.wait(&mut state);
        }
        state.check()?;
        Ok(state)
    }

    pub(super) fn is_complete(&self) -> Result<bool> {
        let mut state = self.state.lock();
        state.refuse_capture("query")?;
        state.check()?;
        let is_complete = state.completed == state.submitted;
        if is_complete {
            self.order.point().is_known_to_host();
        }
        Ok(is_complete)
    }

    /// Returns the objects that are kept by launches that are not complete.
    pub(super) fn in_use(&self) -> Vec<Owner> {
        let state = self.state.lock();
        let mut owners = Vec::new();
        let mut add = |owner: &Owner| owners.push(owner.clone());
        let pending = state.pending.iter().map(|(op, _)| op);
        state.running.iter().chain(pending).for_each(|op| op.each_owner(&mut add));
        owners
    }

    pub(super) fn take_failed(&self) -> Vec<Owner> {
        self.state.lock().failed.take()
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        self.state.lock().refuse_capture("synchronize")?;
        self.wait()
    }

    /// Blocks until the work submitted so far is complete. Captured work is not submitted.
    pub(super) fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        let target = state.submitted;
        while state.completed < target {
            self.completed.wait(&mut state);
        }
        self.order.point().is_known_to_host();
        state.check()
    }

    pub(super) fn is_in(&self, capture: &CaptureToken) -> bool {
        self.state.lock().capture.as_ref().is_some_and(|own| capture.as_ptr() == Arc::as_ptr(&own.token))
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.state.lock().capture.is_some()
    }

    pub(super) fn capture_id(&self) -> Option<u64> {
        self.state.lock().capture.as_ref().map(|capture| Arc::as_ptr(&capture.token).addr() as u64)
    }

    pub(super) fn begin_capture(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.check()?;
        if state.capture.is_some() {
            return Err(Error::invalid("the stream is capturing already"));
        }
        state.capture = Some(Capture::default());
        Ok(())
    }

    pub(super) fn end_capture(&self) -> Result<Vec<Op>> {
        let captured = self.state.lock().capture.take();
        captured
            .map(|capture| capture.ops)
            .ok_or_else(|| Error::invalid("the stream is not capturing; begin a capture first"))
    }

    /// Closes the queue: the worker ends when it has done all its work. Returns whether it has.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.closed = true;
        self.submitted.notify_one();
        state.completed == state.submitted
    }

    /// The worker's loop. At its end it leaves failures that were not reported to the device.
    pub(super) fn work(&self, failed_of_device: &Mutex<Untold>) {
        let mut state = self.state.lock();
        loop {
            let Some((op, point)) = state.pending.pop_front() else {
                if state.closed {
                    break;
                }
                self.submitted.wait(&mut state);
                continue;
            };
            let failed = state.error.clone();
            state.waiting -= op.count();
            state.running = Some(op.clone());
            drop(state);
            let result = caught(|| match failed {
                Some(error) => {
                    op.skip(&error);
                    Ok(())
                }
                None => {
                    self.order.join(&point);
                    op.run(&self.order)
                }
            });
            // The objects that both kept alive are released here, before any thread can see that the work is complete.
            state = self.state.lock();
            op.each_owner(&mut |owner| state.failed.note(owner));
            let running = state.running.take();
            drop(state);
            let dropped = caught(|| {
                drop((op, running));
                Ok(())
            });
            state = self.state.lock();
            if let Err(error) = result.and(dropped) {
                state.error = Some(error);
            }
            state.completed += 1;
            self.completed.notify_all();
        }
        if let Some(error) = state.error.as_ref().filter(|_| !state.error_was_reported) {
            tracing::warn!(
                target: "mscclpp::gpu", %error, "a simulated stream was dropped with an error that nobody asked for"
            );
        }
        let untold = state.failed.take();
        // The lock is held, so that a thread that asks the queue and then the device finds them.
        failed::leave(&untold, failed_of_device);
        drop(state);
        failed::log_untold(&untold);
    }
}

/// Returns the result of `step`. A panic in it, of which standard error has the message, is an error of the stream: whoever waits
/// for the stream would else wait for ever. What a panic leaves half done is not used, as a stream that has failed does no more.
fn caught(step: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(step))
        .unwrap_or_else(|_| Err(Error::system("work of a simulated stream", "it panicked")))
}
