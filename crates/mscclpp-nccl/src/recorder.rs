//! The last calls of a communicator, which are kept for `MSCCLPP_NCCL_DUMP`.

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use mscclpp::{Event, Gpu, Stream};
use mscclpp_collectives::Request;
use parking_lot::Mutex;

use crate::{abi::Handle, failure::Failure};

/// The number of calls that are kept.
const KEPT: usize = 1000;

/// The last calls of a communicator, or nothing if none are kept.
pub(crate) struct Recorder {
    kept: Option<Mutex<Kept>>,
}

/// Calls, numbered from 0. The last ones are kept.
#[derive(Default)]
struct Kept {
    first: u64,
    calls: VecDeque<Recorded>,
}

struct Recorded {
    request: Request<'static>,
    /// The address of the stream's handle.
    stream: usize,
    since: Instant,
    state: State,
}

#[derive(Clone)]
enum State {
    /// A thread is putting the call into its stream.
    BeingPut,
    /// The call is in its stream, with an event behind it.
    Put(Event),
    /// The call is in a graph, or there is no event for it.
    NotFollowed,
    /// The call was not put into its stream.
    Refused,
    Complete,
    /// The work of the stream failed.
    Failed,
}

/// The position of a rank: how many calls it has made, and how many of these are complete before the first that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    made: u64,
    complete: u64,
}

impl Recorder {
    pub(crate) fn new(keeps: bool) -> Self {
        Self { kept: keeps.then(Mutex::default) }
    }

    /// Records requests that `put` puts into a stream.
    pub(crate) fn put(
        &self,
        gpu: &Gpu,
        (handle, stream): (Handle, &Stream),
        requests: &[Request<'static>],
        put: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(kept) = &self.kept else { return put() };
        let first = kept.lock().add(requests, handle.addr());
        let done = put();
        let state = match done {
            Ok(()) => after(gpu, stream),
            Err(_) => State::Refused,
        };
        kept.lock().set(first, requests.len(), &state);
        done
    }

    /// The position of this rank, and the calls in words; `None` if none are kept.
    pub(crate) fn told(&self) -> Option<(Position, String)> {
        let mut kept = self.kept.as_ref()?.lock();
        kept.settle();
        Some((kept.position(), kept.to_string()))
    }

    /// How long the first call that is not complete has waited.
    pub(crate) fn waits(&self) -> Option<Duration> {
        let mut kept = self.kept.as_ref()?.lock();
        kept.settle();
        kept.calls.iter().find(|call| call.waits()).map(|call| call.since.elapsed())
    }
}

/// The state of calls that were put into a stream just now.
fn after(gpu: &Gpu, stream: &Stream) -> State {
    // An event that is captured in a graph marks nothing.
    if stream.is_capturing().unwrap_or(true) {
        return State::NotFollowed;
    }
    let event = gpu.event(false).and_then(|event| stream.record(&event).map(|()| event));
    event.map_or(State::NotFollowed, State::Put)
}

impl Kept {
    /// Adds calls, and returns the number of the first.
    fn add(&mut self, requests: &[Request<'static>], stream: usize) -> u64 {
        let first = self.made();
        for request in requests {
            if self.calls.len() == KEPT {
                self.calls.pop_front();
                self.first += 1;
            }
            let since = Instant::now();
            self.calls.push_back(Recorded { request: *request, stream, since, state: State::BeingPut });
        }
        first
    }

    fn set(&mut self, first: u64, count: usize, state: &State) {
        for number in first..first + count as u64 {
            // A call may be forgotten already, if other threads have made many.
            let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
            if let Some(call) = at.and_then(|at| self.calls.get_mut(at)) {
                call.state = state.clone();
            }
        }
    }

    /// Brings the states up to date. Calls that are complete have no event any more.
    fn settle(&mut self) {
        for Recorded { state, .. } in &mut self.calls {
            let State::Put(event) = state else { continue };
            match event.query() {
                Ok(true) => *state = State::Complete,
                Ok(false) => {}
                Err(_) => *state = State::Failed,
            }
        }
    }

    fn made(&self) -> u64 {
        self.first + self.calls.len() as u64
    }

    fn position(&self) -> Position {
        let waits = self.calls.iter().position(Recorded::waits).unwrap_or(self.calls.len());
        Position { made: self.made(), complete: self.first + waits as u64 }
    }
}

impl Recorded {
    /// Whether the call is known not to be complete.
    fn waits(&self) -> bool {
        matches!(self.state, State::BeingPut | State::Put(_))
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, call) in (self.first..).zip(&self.calls) {
            let Recorded { request, stream, since, state } = call;
            let state = match state {
                State::BeingPut => "being put into its stream",
                State::Put(_) => "not complete",
                State::NotFollowed => "in a graph, or not followed",
                State::Refused => "not put into its stream, as the call failed",
                State::Complete => "complete",
                State::Failed => "failed",
            };
            writeln!(
                f,
                "  {number}: {:?} of {} {:?}, stream {stream:#x}, made {:.3} s ago: {state}",
                request.kind,
                request.count,
                request.data_type,
                since.elapsed().as_secs_f64()
            )?;
        }
        Ok(())
    }
}

impl Position {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.made.to_le_bytes());
        bytes[8..].copy_from_slice(&self.complete.to_le_bytes());
        bytes
    }

    /// Reads what a rank has sent, or `None` for anything else than a position.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (made, complete) = bytes.split_first_chunk::<8>()?;
        let complete = complete.try_into().ok()?;
        Some(Self { made: u64::from_le_bytes(*made), complete: u64::from_le_bytes(complete) })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has made {} calls", self.made)?;
        match self.complete < self.made {
            true => write!(f, ", of which call {} is the first that is not complete", self.complete),
            false => f.write_str(", and none of them waits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use mscclpp::{DevicePtr, Platform};
    use mscclpp_collectives::{DataType, Kind};

    use super::*;

    fn request(count: u64) -> Request<'static> {
        let memory = DevicePtr(1 << 32);
        Request { kind: Kind::Send { peer: 3 }, send: memory, recv: memory, count, data_type: DataType::F16 }
    }

    #[test]
    fn the_last_calls_are_kept_and_numbered() {
        let mut kept = Kept::default();
        for count in 0..KEPT as u64 + 2 {
            assert_eq!(kept.add(&[request(count)], 0x40), count);
        }
        assert_eq!((kept.first, kept.calls.len(), kept.made()), (2, KEPT, KEPT as u64 + 2));
        kept.set(0, 4, &State::Refused);
        assert_eq!(kept.position(), Position { made: KEPT as u64 + 2, complete: 4 });
        let text = kept.to_string();
        assert!(text.starts_with("  2: Send { peer: 3 } of 2 F16, stream 0x40, made 0.0"), "{text}");
        assert!(text.contains("not put into its stream") && text.contains("being put"), "{text}");
    }

    #[test]
    fn calls_are_complete_when_their_stream_has_come_so_far() {
        let gpu = Platform::Sim.gpu(0).unwrap();
        let (stream, recorder) = (gpu.stream().unwrap(), Recorder::new(true));
        let put = |done| recorder.put(&gpu, (std::ptr::null_mut(), &stream), &[request(1)], || done);
        put(Ok(())).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(put(Err(Failure::usage("this"))).unwrap_err().text, "this");
        let (position, text) = recorder.told().unwrap();
        assert_eq!(position, Position { made: 2, complete: 2 });
        assert!(text.contains(": complete\n") && text.contains("as the call failed\n"), "{text}");
        assert_eq!(recorder.waits(), None);
        stream.begin_capture().unwrap();
        put(Ok(())).unwrap();
        assert!(recorder.told().unwrap().1.contains("in a graph"));
        drop(stream.end_capture().unwrap());
        recorder.kept.as_ref().unwrap().lock().add(&[request(9)], 0);
        assert!(recorder.waits().is_some());
        assert!(Recorder::new(false).told().is_none());
    }

    #[test]
    fn a_position_arrives_as_it_was_sent() {
        let position = Position { made: 300, complete: 7 };
        assert_eq!(Position::parse(&position.to_bytes()), Some(position));
        assert_eq!(Position::parse(&[0; 15]), None);
        assert_eq!(Position::parse(&[0; 17]), None);
        assert_eq!(
            position.to_string(),
            "has made 300 calls, of which call 7 is the first that is not complete"
        );
        assert_eq!(Position { made: 2, complete: 2 }.to_string(), "has made 2 calls, and none of them waits");
    }
}
