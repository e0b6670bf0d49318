//! The streams of others: one value of this library for each, however often it is given to `Stream::from_raw`.
//!
//! A handle may be that of a new stream when the old one was destroyed, so a value counts only for the driver's number
//! of the stream, which is never used twice in a process. While a stream is being captured, it cannot be asked for its
//! number, and so it has a second value for the number of the capture. Of a stream that is gone, nothing is asked and nothing is
//! recorded in it: what is known of its launches is what the events say that were recorded while it lived.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread::ThreadId,
};

use parking_lot::Mutex;

use super::{DriverStream, in_use::LeftBehind};
use crate::Result;

/// The number of values above which those are dropped that keep nothing and that nobody else holds.
const MANY: usize = 64;

/// The streams that were made here, as long as somebody has them.
pub(crate) struct Own<S>(Mutex<Vec<Weak<S>>>);

impl<S> Default for Own<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: DriverStream> Own<S> {
    pub(crate) fn add(&self, stream: S) -> Arc<S> {
        let stream = Arc::new(stream);
        let mut streams = self.0.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    /// All of them, each with the number of its last launch.
    pub(crate) fn launches(&self) -> Vec<(Arc<S>, u64)> {
        let streams: Vec<Arc<S>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        streams.into_iter().map(|stream| (Arc::clone(&stream), stream.uses().last_launch())).collect()
    }
}

/// The key by which a stream of others is found. The driver's number of the stream or capture tells whether it is still the
/// same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// The handle of a stream.
    Stream(usize),
    /// The handle of a stream that is being captured.
    Capture(usize),
    /// The thread whose per-thread stream it is. Rust uses no [`ThreadId`] twice, so the number is always 0.
    Thread(ThreadId),
}

/// The values of one device.
pub(crate) struct Foreign<S> {
    streams: Mutex<HashMap<Name, KnownStream<S>>>,
}

struct KnownStream<S> {
    number: u64,
    stream: Arc<S>,
}

impl<S> Default for Foreign<S> {
    fn default() -> Self {
        Self { streams: Mutex::default() }
    }
}

impl<S: DriverStream> Foreign<S> {
    /// The value for the stream with this name and number, which lives. `wrap` makes it the first time.
    pub(crate) fn get(
        &self,
        name: Name,
        number: u64,
        left_behind: &LeftBehind<S::Event>,
        wrap: impl FnOnce() -> Result<S>,
    ) -> Result<Arc<S>> {
        let mut streams = self.streams.lock();
        if let Some(known) = streams.get(&name)
            && known.number == number
        {
            return Ok(Arc::clone(&known.stream));
        }
        let stream = Arc::new(wrap()?);
        let gone = streams.insert(name, KnownStream { number, stream: Arc::clone(&stream) });
        let mut unused = Vec::new();
        if streams.len() > MANY {
            unused.extend(streams.extract_if(|_, KnownStream { stream, .. }| {
                Arc::strong_count(stream) == 1 && stream.uses().last_launch() == 0
            }));
        }
        drop(streams);
        if let Some(gone) = gone {
            left_behind.take_over_gone(gone.stream.uses());
        }
        // They keep nothing, so the driver is not asked about them.
        drop(unused);
        Ok(stream)
    }

    /// All values, each with the number of its last launch.
    pub(crate) fn launches(&self) -> Vec<(Arc<S>, u64)> {
        let streams = self.streams.lock();
        streams
            .values()
            .map(|KnownStream { stream, .. }| (Arc::clone(stream), stream.uses().last_launch()))
            .collect()
    }

    /// Drops what launches needed that the recorded events have reached.
    pub(crate) fn sweep(&self) {
        for (stream, launches) in self.launches() {
            if launches > 0 {
                stream.uses().sweep_marked();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::c_void,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use crate::{
        KernelObject, Owner,
        backend::EventBackend,
        driver::{captures::CaptureId, in_use::InUse},
        object::Kept,
    };

    /// An event that is reached when the test says so.
    struct Recorded(Arc<AtomicBool>);

    impl EventBackend for Recorded {
        fn query(&self) -> Result<bool> {
            Ok(self.0.load(Ordering::Relaxed))
        }

        fn elapsed_ms(&self, _start: &dyn EventBackend) -> Result<f32> {
            unreachable!("without timing")
        }
    }

    #[derive(Default)]
    struct Theirs {
        is_capturing: AtomicBool,
        in_use: InUse<Recorded>,
        is_reached: Arc<AtomicBool>,
    }

    impl DriverStream for Theirs {
        type Event = Recorded;
        type Graph = ();

        fn uses(&self) -> &InUse<Recorded> {
            &self.in_use
        }
        fn device_id(&self) -> usize {
            0
        }
        fn is_capturing(&self) -> Result<bool> {
            Ok(self.is_capturing.load(Ordering::Relaxed))
        }
        fn may_be_captured(&self) -> bool {
            false
        }
        fn capture(&self) -> Option<(CaptureId, ())> {
            None
        }
        unsafe fn give_to_graph(&self, (): (), _: *mut c_void, _: unsafe extern "C" fn(*mut c_void)) {
            unreachable!("not captured")
        }
        fn is_idle(&self) -> bool {
            unreachable!("it may be gone")
        }
        fn new_event(&self) -> Result<Recorded> {
            Ok(Recorded(Arc::clone(&self.is_reached)))
        }
        fn record_event(&self, _event: &Recorded) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_handle_that_is_used_again_is_another_stream() {
        let (foreign, left_behind) = (Foreign::<Theirs>::default(), LeftBehind::default());
        let value = |name, number| foreign.get(name, number, &left_behind, || Ok(Theirs::default())).unwrap();
        let get = |number| value(Name::Stream(16), number);
        let first = get(7);
        let captured = value(Name::Capture(16), 7);
        assert!(!Arc::ptr_eq(&first, &captured), "its number is not known");
        assert!(Arc::ptr_eq(&captured, &value(Name::Capture(16), 7)));
        assert!(Arc::ptr_eq(&first, &get(7)), "it is found again after the capture");
        let owners: [Owner; 2] = [Arc::new(Kept("a")), Arc::new(Kept("b"))];
        for owner in &owners {
            first.in_use.add(&*first, std::slice::from_ref(owner));
        }
        let reached = Arc::clone(&first.is_reached);
        drop(first);

        assert_eq!(get(8).in_use.last_launch(), 0, "what the old stream's launches need is not this one's");
        let kept = || owners.each_ref().map(|owner| Arc::strong_count(owner) - 1);
        left_behind.sweep();
        assert_eq!(kept(), [1, 1], "they may still run");
        reached.store(true, Ordering::Relaxed);
        left_behind.sweep();
        assert_eq!(kept(), [0, 1], "the event was recorded behind the first alone");
        left_behind.release_unknown(left_behind.unknown());
        assert_eq!(kept(), [0, 0], "the device was waited for");
    }

    #[test]
    fn a_stream_that_is_captured_is_not_asked_whether_it_is_idle() {
        let stream = Theirs::default();
        stream.in_use.add(&stream, &[Arc::new(Kept(())) as Owner]);
        stream.is_capturing.store(true, Ordering::Relaxed);
        stream.in_use.sweep(&stream);
        assert_eq!(stream.in_use.last_launch(), 1, "it may still run");
    }

    /// An object through which waits have failed.
    struct Lost;

    impl KernelObject for Lost {
        fn may_have_failed(&self) -> bool {
            true
        }

        fn check(&self) -> Result<()> {
            Err(crate::Error::InvalidArgument("lost".to_owned()))
        }
    }

    #[test]
    fn what_failed_on_a_stream_that_is_gone_is_told_by_the_device() {
        let (foreign, left_behind) = (Foreign::<Theirs>::default(), LeftBehind::default());
        let get =
            |number| foreign.get(Name::Stream(16), number, &left_behind, || Ok(Theirs::default())).unwrap();
        let told = || left_behind.take_failed().len();
        let first = get(7);
        for _ in 0..3 {
            first.in_use.add(&*first, &[Arc::new(Lost) as Owner]);
        }
        let reached = Arc::clone(&first.is_reached);
        reached.store(true, Ordering::Relaxed);
        first.in_use.sweep_marked();
        // The event is recorded anew, and there is one launch behind it.
        for _ in 0..2 {
            reached.store(false, Ordering::Relaxed);
            first.in_use.add(&*first, &[Arc::new(Lost) as Owner]);
        }
        drop(first);
        get(8);
        assert_eq!(told(), 1, "it was complete");
        reached.store(true, Ordering::Relaxed);
        left_behind.sweep();
        assert_eq!(told(), 3, "the event is behind these");
        left_behind.release_unknown(left_behind.unknown());
        assert_eq!((told(), told()), (1, 0), "the device was waited for");
    }

    #[test]
    fn values_that_nobody_has_and_that_keep_nothing_go() {
        let (foreign, left_behind) = (Foreign::<Theirs>::default(), LeftBehind::default());
        let get = |n: usize| {
            foreign.get(Name::Stream(n), n as u64, &left_behind, || Ok(Theirs::default())).unwrap()
        };
        let (held, busy, owner) = (get(0), get(1), Arc::new(Kept(())) as Owner);
        busy.in_use.add(&*busy, &[owner]);
        drop(busy);
        (2..1000).for_each(|n| drop(get(n)));
        let left = foreign.launches();
        assert!(left.len() <= MANY + 1, "{}", left.len());
        assert!(left.iter().any(|(stream, _)| Arc::ptr_eq(stream, &held)));
        assert!(left.iter().any(|(_, launches)| *launches == 1), "what keeps something stays");
    }
}
