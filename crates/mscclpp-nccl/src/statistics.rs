//! Statistics of a communicator's calls: their numbers, sizes and times, for the line that is written at its end.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use mscclpp::{DevicePtr, Event, Gpu, Stream};
use mscclpp_collectives::{Collectives, DataType, Kind, ReduceOp, Request};
use parking_lot::Mutex;

use crate::report;

/// The most calls that are timed at the same time. Calls beyond these are counted, but not timed.
const TIMED: usize = 1024;

/// The statistics of a communicator's calls. Nothing is kept unless lines of information are written.
pub(crate) struct Statistics(Option<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    rows: BTreeMap<(&'static str, u64), Row>,
    under_way: VecDeque<Timed>,
}

#[derive(Default)]
struct Row {
    calls: u64,
    /// How many of the calls were timed; `milliseconds` is the sum of their times.
    timed: u64,
    milliseconds: f64,
}

/// A call whose time is being measured, with events before and after it.
pub(crate) struct Timed {
    key: (&'static str, u64),
    begin: Event,
    end: Event,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        Self(report::is_info().then(Mutex::default))
    }

    /// Counts a call before it is put into a stream, and begins to time it. Calls of a group count as one, with the sum of
    /// their bytes.
    pub(crate) fn begin(&self, gpu: &Gpu, stream: &Stream, requests: &[Request<'_>]) -> Option<Timed> {
        let mut kept = self.0.as_ref()?.lock();
        let bytes = requests.iter().map(|request| request.count.saturating_mul(request.data_type.size()));
        let key = (name(requests)?, bytes.fold(0, u64::saturating_add));
        kept.take_complete();
        kept.rows.entry(key).or_default().calls += 1;
        // Events that are captured in a graph have no time.
        if kept.under_way.len() >= TIMED || stream.is_capturing().unwrap_or(true) {
            return None;
        }
        let [begin, end] = [gpu.event(true).ok()?, gpu.event(true).ok()?];
        stream.record(&begin).ok()?;
        Some(Timed { key, begin, end })
    }

    /// Records the end of a timed call, after it was put into its stream.
    pub(crate) fn end(&self, stream: &Stream, timed: Option<Timed>) {
        if let (Some(kept), Some(timed)) = (&self.0, timed)
            && stream.record(&timed.end).is_ok()
        {
            kept.lock().under_way.push_back(timed);
        }
    }

    /// Describes the calls in words. Waits until the timed ones are complete, but no longer than `limit`.
    pub(crate) fn of(&self, limit: Duration) -> String {
        let Some(kept) = &self.0 else { return String::new() };
        let deadline = Instant::now() + limit;
        loop {
            let mut kept = kept.lock();
            kept.take_complete();
            if kept.under_way.is_empty() || Instant::now() >= deadline {
                return kept.to_string();
            }
            drop(kept);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Kept {
    fn take_complete(&mut self) {
        // A call that failed has no time; its failure is reported elsewhere.
        while self.under_way.front().is_some_and(|timed| timed.end.query().unwrap_or(true)) {
            let Some(timed) = self.under_way.pop_front() else { return };
            if let (Ok(took), Some(row)) = (timed.end.elapsed_ms(&timed.begin), self.rows.get_mut(&timed.key))
            {
                row.timed += 1;
                row.milliseconds += f64::from(took);
            }
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return f.write_str("nothing was called");
        }
        for (i, ((name, bytes), row)) in self.rows.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} {name} of {bytes} bytes", row.calls)?;
            if row.timed > 0 {
                write!(f, " ({:.1} us each)", row.milliseconds * 1e3 / row.timed as f64)?;
            }
        }
        Ok(())
    }
}

fn name(requests: &[Request<'_>]) -> Option<&'static str> {
    Some(match requests {
        [] => return None,
        [Request { kind, .. }] => match kind {
            Kind::AllReduce(_) => "AllReduce",
            Kind::AllGather => "AllGather",
            Kind::ReduceScatter(_) => "ReduceScatter",
            Kind::AllToAll => "AlltoAll",
            Kind::Broadcast { .. } => "Broadcast",
            Kind::Reduce { .. } => "Reduce",
            Kind::Gather { .. } => "Gather",
            Kind::Scatter { .. } => "Scatter",
            Kind::Send { .. } => "Send",
            Kind::Recv { .. } => "Recv",
            _ => "call",
        },
        _ => "group",
    })
}

/// The protocols of an `all_reduce`, by size.
pub(crate) fn protocols(collectives: &Collectives) -> String {
    let mut protocols: Vec<(String, u32)> = Vec::new();
    for bits in 10..=30 {
        let kind = Kind::AllReduce(ReduceOp::Sum);
        // The address is arbitrary, as nothing is called.
        let memory = DevicePtr(1 << 32);
        let request =
            Request { kind, send: memory, recv: memory, count: 1 << (bits - 2), data_type: DataType::F32 };
        let Ok(Some(selection)) = collectives.selection(&request) else { continue };
        let steps = if selection.two_steps { " in two steps" } else { "" };
        let protocol = format!("{}{steps}", selection.protocol);
        match protocols.last_mut() {
            Some((last, until)) if *last == protocol => *until = bits,
            _ => protocols.push((protocol, bits)),
        }
    }
    match (protocols.is_empty(), collectives.n_ranks()) {
        (true, 1) => return "a copy".to_owned(),
        (true, _) => return "port channels, which are slow".to_owned(),
        (false, _) => {}
    }
    let protocols = protocols.iter().map(|(protocol, bits)| format!("{protocol} up to {}", size(*bits)));
    protocols.collect::<Vec<_>>().join(", ")
}

fn size(bits: u32) -> String {
    match bits {
        30.. => format!("{} GiB", 1u64 << (bits - 30)),
        20.. => format!("{} MiB", 1u64 << (bits - 20)),
        _ => format!("{} KiB", 1u64 << bits >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_how_often_and_how_long() {
        let mut kept = Kept::default();
        assert_eq!(kept.to_string(), "nothing was called");
        kept.rows.insert(("AllReduce", 1024), Row { calls: 3, timed: 2, milliseconds: 0.01 });
        kept.rows.insert(("Send", 8), Row { calls: 1, ..Row::default() });
        assert_eq!(kept.to_string(), "3 AllReduce of 1024 bytes (5.0 us each), 1 Send of 8 bytes");
    }

    #[test]
    fn sizes_are_read_easily() {
        assert_eq!([size(10), size(19), size(20), size(30)], ["1 KiB", "512 KiB", "1 MiB", "1 GiB"]);
    }
}
