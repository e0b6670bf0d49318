//! Races in words: who did what, where, to which memory, and what would have ordered it.

use std::{collections::HashMap, fmt, mem};

use parking_lot::Mutex;

use super::{
    found::{Found, NearMiss, Why},
    launches::{self, Launch},
    ranks,
    record::{Record, Scope},
    sites::Lines,
};
use crate::sim::ranges;

/// One of the two accesses of a [`Race`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RaceAccess {
    /// The kind of the access, such as `write` or `atomic read at device scope`.
    pub what: String,
    /// Who does it: kernel, device, block and thread, or the stream, or the host.
    pub who: String,
    /// File and line of the kernel, and in parentheses that of a header if the access is in one. For the host, its call.
    pub place: String,
}

/// Two accesses to the same bytes that nothing orders, though one of them writes; or a read of bytes that nobody has written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Race {
    /// The access that came first in this run; `None` for a read of what nobody has written.
    pub earlier: Option<RaceAccess>,
    /// The access that came second.
    pub later: RaceAccess,
    /// Which memory: whose it is, its address and size, and the offset.
    pub memory: String,
    /// The synchronisation that would have ordered the two.
    pub hint: String,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, access: &RaceAccess| {
            writeln!(f, "  {} at {}\n    by {}", access.what, access.place, access.who)
        };
        match &self.earlier {
            Some(earlier) => {
                writeln!(f, "race in {}:", self.memory)?;
                line(f, earlier)?;
            }
            None => writeln!(f, "read of what nobody has written, in {}:", self.memory)?,
        }
        line(f, &self.later)?;
        write!(f, "  {}", self.hint)
    }
}

#[derive(Default)]
struct Reports {
    races: Vec<Race>,
    /// The pairs of places that are in it, with their texts.
    places: HashMap<(String, String), String>,
}

static REPORTS: Mutex<Option<Reports>> = Mutex::new(None);

/// Returns the races that simulated devices have found in this process so far, each pair of lines once; none unless
/// `MSCCLPP_SIM_RACES=1` is set.
///
/// A kernel with a race fails with the same text when it ends, and so its stream does. This is for tests that check all
/// of them, also those of kernels that still run.
///
/// ```
/// for race in mscclpp_gpu::testing::races() {
///     eprintln!("{race}");
/// }
/// ```
#[must_use]
pub fn races() -> Vec<Race> {
    for launch in launches::all() {
        launch.problem();
    }
    REPORTS.lock().as_ref().map_or_else(Vec::new, |reports| reports.races.clone())
}

impl Launch {
    /// Returns the text of each race that its threads have found so far, or nothing if there are none.
    pub(in super::super) fn problem(&self) -> Option<String> {
        // Texts take stack, of which threads of kernels have little: they are made here.
        let found = mem::take(&mut *self.found.lock());
        let mut problems = self.problems.lock();
        for text in found.iter().map(add) {
            if !problems.contains(&text) {
                problems.push(text);
            }
        }
        (!problems.is_empty()).then(|| problems.join("\n"))
    }
}

/// Takes note of a race, and gives it in words: those of the first one between the same lines.
pub(super) fn add(found: &Found) -> String {
    let race = race(found);
    let place = |access: &RaceAccess| access.place.clone();
    let mut pair = (race.earlier.as_ref().map(place).unwrap_or_default(), place(&race.later));
    if pair.0 > pair.1 {
        mem::swap(&mut pair.0, &mut pair.1);
    }
    let mut reports = REPORTS.lock();
    let reports = reports.get_or_insert_default();
    let (races, places) = (&mut reports.races, &mut reports.places);
    places
        .entry(pair)
        .or_insert_with(|| {
            let text = race.to_string();
            tracing::warn!(target: "mscclpp::gpu", "{text}");
            races.push(race);
            text
        })
        .clone()
}

fn race(found: &Found) -> Race {
    let hint = match &found.earlier {
        Some(earlier) => hint(earlier, &found.later, found.near_miss.as_ref()),
        None => "a GPU has any bytes there: write it first, and put a barrier between if another thread does"
            .to_owned(),
    };
    Race {
        earlier: found.earlier.as_ref().map(access),
        later: access(&found.later),
        memory: found.memory.clone(),
        hint,
    }
}

fn access(record: &Record) -> RaceAccess {
    let what = match (record.is_async(), record.how.is_strong(), record.how.is_write()) {
        (true, _, true) => "write by a bulk copy".to_owned(),
        (true, _, false) => "read by a bulk copy".to_owned(),
        (false, false, true) => "write".to_owned(),
        (false, false, false) => "read".to_owned(),
        (false, true, is_write) => {
            let scope = match record.how.scope() {
                Scope::Block => "block",
                Scope::Device => "device",
                Scope::System => "system",
            };
            let what = if is_write { "write" } else { "read" };
            if record.how.is_packet() {
                format!("{what} of a packet")
            } else {
                format!("atomic {what} at {scope} scope")
            }
        }
    };
    RaceAccess { what, who: who(record), place: Lines::of(record.site).text(record.site) }
}

fn who(record: &Record) -> String {
    match launches::of_block(record.block).filter(|_| record.block != 0) {
        Some(launch) => {
            let rank = ranks::of_stream(record.stream);
            let of = if rank.is_empty() { "on " } else { "of " };
            let place = launch.place(record.block, record.number());
            format!("kernel {} {of}{rank}device {}, {place}", launch.kernel, launch.device())
        }
        None if record.stream != 0 => {
            format!("a stream of {}device {}", ranks::of_stream(record.stream), record.device())
        }
        None => "the host".to_owned(),
    }
}

/// Returns advice about the synchronisation that would have ordered the two.
fn hint(earlier: &Record, later: &Record, near_miss: Option<&NearMiss>) -> String {
    if earlier.how.is_packet() && later.how.is_packet() {
        return "a packet was overwritten before it was read: write to a place again when its reader has said that it has read it, \
                as by a packet of its own, or to two places in turns"
            .to_owned();
    }
    if earlier.how.is_strong()
        && later.how.is_strong()
        && let (Some(a), Some(b)) = (earlier.how.bytes(), later.how.bytes())
        && a != b
    {
        return format!(
            "both are atomic, and of mixed sizes, {a} and {b} bytes: for PTX that is a race, as accesses are atomic for each other \
             only if they have the same address and size. Access the word in one size, or order the two"
        );
    }
    if let Some(miss) = near_miss {
        let (store, load) =
            (Lines::of(miss.store.site).text(miss.store.site), Lines::of(miss.load).text(miss.load));
        return match miss.why {
            Why::Store => format!(
                "the store at {store} comes between them, and releases nothing: make it a release (signal() rather than \
                 relaxedSignal(), or a fence in front of it)"
            ),
            Why::Load => format!(
                "the load at {load} comes between them, and acquires nothing: make it an acquire (wait() rather than \
                 relaxedWait(), or a fence behind it)"
            ),
            Why::Scope => format!(
                "the store at {store} and the load at {load} come between them, and the scope of one of the two does not \
                 reach the other thread: use the scope of the device, or of the system between devices and with the host"
            ),
            Why::Size => format!(
                "the store at {store} and the load at {load} come between them, and have mixed sizes: in PTX a load acquires what a \
                 store of the same address and size has released, so access the word in one size"
            ),
        };
    }
    if earlier.is_async() || later.is_async() {
        return "a bulk copy is ordered behind ordinary accesses by bulkFence, in the thread that made them or behind a \
                barrier, and is complete by a wait of its BulkBarrier or by bulkStoreCommit and bulkStoreWait"
            .to_owned();
    }
    if earlier.how.is_strong() != later.how.is_strong() {
        return "one of the two is atomic and the other is not: make both atomic, or order them".to_owned();
    }
    if earlier.how.is_strong() {
        return "both are atomic, and the scope of one does not reach the other".to_owned();
    }
    match (earlier.block, later.block) {
        (0, 0) => "nothing orders these streams: record an event in one and wait for it in the other, or synchronise",
        (0, _) | (_, 0) => {
            "nothing orders the kernel and the host or stream: synchronise the stream, wait for an event, or signal"
        }
        (a, b) if a == b => "they are threads of one block: put __syncthreads() between, or __syncwarp() within a warp",
        _ if earlier.stream == later.stream && earlier.sequence == later.sequence => {
            "they are blocks of one launch: put a DeviceSyncer's sync() between, or a release and an acquire at device scope"
        }
        _ if earlier.device() == later.device() => {
            "they are launches in two streams: record an event in one and wait for it in the other"
        }
        _ if !earlier.how.is_write() => {
            "they are on two devices, and the memory was written again before its reader had said that it has read it: the reader \
             signals back behind the read, with signal(), and the writer waits for that in front of the write"
        }
        _ if !later.how.is_write() => {
            "they are on two devices: put signal() behind the write and wait() in front of the read. If both are there, the memory \
             was written again before its reader had said that it has read it: the reader signals back behind the read, and \
             the writer waits for that in front of the write"
        }
        _ => "they are on two devices: put signal() behind the first and wait() in front of the second",
    }
    .to_owned()
}

/// The memory at an address.
pub(super) fn memory(address: usize) -> String {
    match ranges::at(address) {
        Some((begin, bytes)) => {
            let owner = match ranges::device_of(begin) {
                Some(device) => format!("memory of {}device {device}", ranks::of_memory(begin)),
                None if ranges::is_imported(begin) => "memory of another process".to_owned(),
                None => "pinned memory or a variable".to_owned(),
            };
            format!("{owner} at {begin:#x} ({bytes} bytes), offset {}", address - begin)
        }
        None => format!("memory at {address:#x}"),
    }
}
