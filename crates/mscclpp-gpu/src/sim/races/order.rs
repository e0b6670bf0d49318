//! The operations of the host and of streams, and their order.
//!
//! All threads of the host count as one: the detector does not see how they wait for each other, so the accesses of one of them
//! are known to the next. A stream does its operations in their order, each of them after the events that the host knew when it
//! was submitted. The host learns of the operations of a stream when it waits for it, or for an event.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use parking_lot::Mutex;

use super::{
    clock::{Clock, joined},
    found::Found,
    launches::{Launch, Sweep},
    ranks,
    record::{DEVICE_SHIFT, How, Record, Scope},
    report,
    shadow::{by_page, first, hold},
    sites::HostSite,
    switch::is_on,
    words::{Location, Release, stamp},
};
use crate::{
    DevicePtr, Error, LaunchConfig, Result,
    sim::{ranges, schedule},
};

struct Host {
    clock: Option<Arc<Clock>>,
    now: u64,
    sweep: Sweep,
}

static HOST: Mutex<Host> = Mutex::new(Host { clock: None, now: 1, sweep: Sweep::new() });

impl Host {
    /// Returns all that the host knows, its own accesses until now included.
    fn release(&mut self) -> Arc<Clock> {
        let clock = self.clock.get_or_insert_default();
        Arc::make_mut(clock).host = self.now;
        self.now += 1;
        Arc::clone(clock)
    }

    fn learn(&mut self, clock: &Arc<Clock>) {
        let own = self.clock.get_or_insert_default();
        *own = joined(own, clock);
        self.sweep.look(own);
    }

    fn record(&self, site: HostSite, how: How) -> Record {
        Record { clock: self.now, stamp: stamp(), site: site as u32, how, ..Record::default() }
    }
}

/// The host acquires what a kernel released to it.
pub(super) fn host_learns(clock: &Arc<Clock>) {
    HOST.lock().learn(clock);
}

/// Returns the clock of the host.
pub(super) fn of_host() -> Arc<Clock> {
    HOST.lock().release()
}

/// A point in time: when something was submitted or recorded. Empty without the detector.
#[derive(Clone, Default)]
pub(in super::super) struct Point(Option<Arc<Clock>>);

impl Point {
    /// Returns the point of the host now.
    pub(in super::super) fn of_host() -> Self {
        Self(is_on().then(of_host))
    }

    /// The host has waited for it.
    pub(in super::super) fn is_known_to_host(&self) {
        self.0.iter().for_each(host_learns);
    }
}

/// The order of a stream. Empty without the detector.
#[derive(Default)]
pub(in super::super) struct Order(Option<Mutex<State>>);

struct State {
    stream: u32,
    sequence: u32,
    /// The clock of the operations so far, themselves included.
    clock: Arc<Clock>,
    sweep: Sweep,
}

impl Order {
    /// Makes the order of a new stream of the device.
    pub(in super::super) fn new(device: usize) -> Self {
        static STREAMS: AtomicU32 = AtomicU32::new(1);
        Self(is_on().then(|| {
            let number = STREAMS.fetch_add(1, Ordering::Relaxed) & ((1 << DEVICE_SHIFT) - 1);
            let stream = (device as u32) << DEVICE_SHIFT | number;
            Mutex::new(State { stream, sequence: 0, clock: Arc::default(), sweep: Sweep::new() })
        }))
    }

    /// The calling thread submits something.
    pub(in super::super) fn is_used(&self) {
        if let Some(state) = &self.0 {
            ranks::uses_stream(state.lock().stream);
        }
    }

    /// Orders later operations of the stream after the point.
    pub(in super::super) fn join(&self, point: &Point) {
        if let (Some(state), Some(clock)) = (&self.0, &point.0) {
            let mut state = state.lock();
            state.learn(clock);
        }
    }

    /// Returns the point after the operations of the stream so far.
    pub(in super::super) fn point(&self) -> Point {
        Point(self.0.as_ref().map(|state| Arc::clone(&state.lock().clock)))
    }

    /// The stream copies.
    ///
    /// # Errors
    /// The race, if there is one.
    pub(in super::super) fn copies(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        self.does(HostSite::Copy, &[(src, bytes, false), (dst, bytes, true)])
    }

    /// The stream fills.
    pub(in super::super) fn fills(&self, dst: DevicePtr, bytes: u64) -> Result<()> {
        self.does(HostSite::StreamFill, &[(dst, bytes, true)])
    }

    fn does(&self, site: HostSite, ranges: &[(DevicePtr, u64, bool)]) -> Result<()> {
        let Some(state) = &self.0 else { return Ok(()) };
        let mut state = state.lock();
        state.sequence += 1;
        let (clock, record) = (Arc::clone(&state.clock), state.record(site, How::default()));
        let mut found = Vec::new();
        for (at, bytes, is_write) in ranges {
            let how = how(*at, *bytes, *is_write);
            found.extend(range(*at, *bytes, Record { how, ..record }, &clock));
        }
        state.done();
        drop(state);
        failed(site, &found)
    }

    /// The stream writes a word, which releases all that the stream has done: `write` does it.
    pub(in super::super) fn publishes(&self, dst: DevicePtr, value: u64, write: impl FnOnce()) {
        let Some(state) = &self.0 else { return write() };
        let mut state = state.lock();
        state.sequence += 1;
        let record = state.record(HostSite::WriteU64, How::strong(true, Scope::System));
        if ranges::is_imported(dst.0 as usize) {
            // Its owner may read it and send a message, which is not seen.
            host_learns(&state.clock);
        }
        publish(dst, value, record, &state.clock, write);
        state.done();
    }

    /// A launch begins in the stream.
    ///
    /// # Errors
    /// The error of [`Launch::begin`].
    pub(in super::super) fn launches(
        &self,
        kernel: &str,
        config: LaunchConfig,
    ) -> Result<Option<Arc<Launch>>> {
        let Some(state) = &self.0 else { return Ok(None) };
        let mut state = state.lock();
        state.sequence += 1;
        Launch::begin(kernel, config, (state.stream, state.sequence), Arc::clone(&state.clock)).map(Some)
    }

    /// The launch that began last has ended: what comes next knows what its threads have learned.
    pub(in super::super) fn launch_ended(&self, launch: &Launch) {
        if let Some(state) = &self.0 {
            let mut state = state.lock();
            state.done();
            state.learn(&launch.end());
        }
    }
}

impl State {
    fn learn(&mut self, clock: &Arc<Clock>) {
        self.clock = joined(&self.clock, clock);
        self.sweep.look(&mut self.clock);
    }

    fn record(&self, site: HostSite, how: How) -> Record {
        let (stream, sequence) = (self.stream, self.sequence);
        Record { stream, sequence, stamp: stamp(), site: site as u32, how, ..Record::default() }
    }

    fn done(&mut self) {
        Arc::make_mut(&mut self.clock).learn_stream(self.stream, self.sequence);
    }
}

/// The host itself reads memory of a device. What it reads of a word that a kernel has released to, it acquires. The read is
/// no access that could race: programs poll like that, while a kernel runs.
pub(in super::super) fn host_reads(at: DevicePtr, bytes: u64) {
    if is_on() && how(at, bytes, false).is_strong() {
        acquire(Location { address: at.0 as usize, bytes: bytes as usize });
    }
}

/// The host itself writes or fills memory of a device.
///
/// # Errors
/// The race, if there is one.
pub(in super::super) fn host_writes(is_fill: bool, at: DevicePtr, bytes: u64) -> Result<()> {
    if !is_on() {
        return Ok(());
    }
    let site = if is_fill { HostSite::Fill } else { HostSite::Write };
    let how = how(at, bytes, true);
    let mut host = HOST.lock();
    let (clock, record) = (Arc::clone(host.clock.get_or_insert_default()), host.record(site, how));
    drop(host);
    let found = range(at, bytes, record, &clock);
    if how.is_strong() {
        release(Location { address: at.0 as usize, bytes: bytes as usize }, &record);
    }
    failed(site, &found)
}

/// A word of up to 8 bytes is one access.
fn how(at: DevicePtr, bytes: u64, is_write: bool) -> How {
    if bytes <= 8 && bytes.is_power_of_two() && at.0.is_multiple_of(bytes) {
        How::strong(is_write, Scope::System)
    } else {
        How::plain(is_write)
    }
}

/// A transport writes a word behind its data, with release.
pub(crate) fn transport_publishes(dst: DevicePtr, value: u64, write: impl FnOnce()) {
    if !is_on() {
        return write();
    }
    let mut host = HOST.lock();
    let clock = host.release();
    let record = host.record(HostSite::Transport, How::strong(true, Scope::System));
    drop(host);
    publish(dst, value, record, &clock, write);
}

fn publish(dst: DevicePtr, value: u64, record: Record, clock: &Arc<Clock>, write: impl FnOnce()) {
    let at = dst.0 as usize;
    if ranges::at(at).is_none() {
        return write();
    }
    let mut held = hold(at);
    let page = held.page(at);
    write();
    page.access(at, 8, record, |earlier| clock.covers(earlier), |_, _, _| {});
    let word = page.words.write(Location { address: at, bytes: 8 });
    word.begin_anew(&record);
    word.release(Release { clock: Arc::clone(clock), by: record });
    word.value = Some(value);
}

/// The host has read a word.
fn acquire(word: Location) {
    let mut held = hold(word.address);
    let words = held.page(word.address).words.that_overlap(word);
    let releases: Vec<Release> = words.flat_map(|(_, word)| word.releases.iter().cloned()).collect();
    drop(held);
    host_learns_released(&releases);
}

/// The host learns what is released to the whole system.
pub(super) fn host_learns_released(releases: &[Release]) {
    for release in releases.iter().filter(|release| release.by.how.scope() == Scope::System) {
        host_learns(&release.clock);
    }
}

/// The host has written a word, to be followed by a change of its value.
fn release(word: Location, record: &Record) {
    let clock = of_host();
    let mut held = hold(word.address);
    let word = held.page(word.address).words.write(word);
    word.begin_anew(record);
    word.release(Release { clock, by: *record });
    word.value = None;
}

/// Takes note of an access to a range, if it is memory of the platform.
fn range(at: DevicePtr, bytes: u64, record: Record, clock: &Clock) -> Vec<Found> {
    let (at, bytes) = (at.0 as usize, bytes as usize);
    let mut found: Vec<Found> = Vec::new();
    if ranges::at(at).is_none() {
        return found;
    }
    by_page(at, bytes, |at, bytes| {
        let mut held = hold(at);
        let is_before = |earlier: &Record| clock.covers(earlier);
        held.page(at).access(at, bytes, record, is_before, |earlier, at, common| {
            // One of each place is enough.
            if !found.iter().any(|there| there.earlier.is_some_and(|there| there.site == earlier.site)) {
                let memory = report::memory(first(at, common));
                found.push(Found { earlier: Some(earlier), later: record, memory, near_miss: None });
            }
        });
    });
    found
}

fn failed(site: HostSite, found: &[Found]) -> Result<()> {
    let problems: Vec<String> = found.iter().map(report::add).collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Race { operation: site.text(), message: schedule::with_seed(problems.join("\n")) })
}
