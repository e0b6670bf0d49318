//! Turns the operations of a batch into requests.

use std::collections::VecDeque;

use mscclpp_core::provider::{Operation, RouteId, Routes};

use super::request::{Item, Request};
use crate::{blob::RegionBlob, select::Select};

/// The most bytes that one request moves.
pub(super) const LARGEST: u64 = 1 << 30;

/// A route that was prepared.
pub(super) struct Route {
    pub(super) to: RegionBlob,
    pub(super) from: Option<Origin>,
}

/// The memory from which writes along a route come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) address: u64,
    pub(super) key: u32,
    /// Whether the host can read the memory, as it must to put data inside a request.
    pub(super) is_host_memory: bool,
}

/// The state that planning changes. If a request does not fit, the state is restored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    /// The word in which the peer's thread stores the numbers that come with data, and the value it stored last.
    selected: Option<Select>,
    /// The number of requests so far that need a receive at the peer.
    pub(super) messages: u64,
    /// The number of requests planned since the last one that asks for a completion.
    unsignalled: u32,
    /// The number of tickets given.
    tickets: usize,
}

/// Operations that become requests together.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// The number of operations of the batch up to the end of this unit; the next field is that of items of the plan.
    operations: usize,
    items: usize,
    state: State,
}

/// The plan of a batch: items to be posted, in order.
pub(super) struct Plan {
    pub(super) items: VecDeque<Item>,
    pub(super) state: State,
    /// The units of the current batch, and the state before it.
    units: Vec<Unit>,
    begin: State,
    /// Tickets of flushes, each with the number of the request for which it waits.
    pub(super) tickets: VecDeque<(u64, u64)>,
    how: How,
}

/// The settings of a queue, which do not change.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Whether signals go as immediate data.
    pub(super) immediates: bool,
    /// The interval, in requests, at which one asks for a completion at the latest.
    pub(super) quarter: u32,
    /// The most bytes of data that a request may carry itself.
    pub(super) inline: u32,
}

impl Plan {
    pub(super) fn new(how: How) -> Self {
        let (items, units, tickets) = Default::default();
        Self { items, state: State::default(), units, begin: State::default(), tickets, how }
    }

    /// Plans as many of the operations as there is room for, once nothing of an earlier batch is left. `posted` is
    /// the number of the next request to be posted, `room` how many can be posted, and `messages` how many messages
    /// the peer can have received in all. If nothing is under way (`idle`), the first operation is planned even if it
    /// is longer than `room`; the rest of it is posted later.
    pub(super) fn add(
        &mut self,
        batch: &[Operation],
        routes: &Routes<Route>,
        posted: u64,
        room: usize,
        messages: u64,
        idle: bool,
    ) {
        debug_assert!(self.items.is_empty(), "what was begun is posted first");
        self.units.clear();
        self.begin = self.state;
        let mut at = 0;
        while at < batch.len() {
            let (before, items) = (self.state, self.items.len());
            let operations = self.unit(&batch[at..], routes, posted);
            let fits = self.items.len() <= room && self.state.messages <= messages;
            let is_alone = idle && items == 0 && self.state.messages <= messages;
            if !fits && !is_alone {
                self.undo(items, before);
                return;
            }
            at += operations;
            self.units.push(Unit { operations: at, items: self.items.len(), state: self.state });
            if !fits {
                return;
            }
        }
    }

    fn undo(&mut self, items: usize, state: State) {
        self.items.truncate(items);
        let given = self.tickets.len() - (self.state.tickets - state.tickets);
        self.tickets.truncate(given);
        self.state = state;
    }

    /// Removes what was not begun, after the first `posted` planned items were posted and taken out. Operations that
    /// were not begun are forgotten; the rest of an operation that was begun stays. Returns how many operations of
    /// the batch are taken.
    pub(super) fn taken(&mut self, posted: usize) -> usize {
        let (mut begins, mut last) = (0, Unit { operations: 0, items: 0, state: self.begin });
        for unit in &self.units {
            if unit.items > posted && begins >= posted {
                break;
            }
            (begins, last) = (unit.items, *unit);
        }
        self.undo(last.items.saturating_sub(posted), last.state);
        last.operations
    }

    /// Plans the next unit. Returns how many operations it contains.
    fn unit(&mut self, batch: &[Operation], routes: &Routes<Route>, posted: u64) -> usize {
        let route = |id: RouteId| routes.get(id);
        match batch[0] {
            Operation::Write { route: id, dst_offset, src_offset, len } => {
                let Some(Route { to, from: Some(from) }) = route(id) else { return 1 };
                self.write(to, dst_offset, from, src_offset, len);
                // The number of a signal can travel with the last data before it.
                if let Some(Operation::Update { route: id, offset, value, previous: Some(_) }) =
                    batch.get(1).copied()
                    && let Some(Route { to, .. }) = route(id)
                    && len > 0
                    && let Some(number) = self.immediate(to, offset, value)
                    && let Some(Item { request: Request::Write { immediate, .. }, signalled }) =
                        self.items.back_mut()
                {
                    (*immediate, *signalled) = (Some(number), true);
                    self.state.unsignalled = 0;
                    return 2;
                }
            }
            Operation::Update { route: id, offset, value, previous } => {
                let Some(Route { to, .. }) = route(id) else { return 1 };
                self.update(to, offset, value, previous);
            }
            Operation::Flush { ticket } => {
                self.ask_for_completion();
                self.state.tickets += 1;
                self.tickets.push_back((ticket, posted + self.items.len() as u64));
            }
            // The core gives this queue no other operations, because the queue says that it stores no completions.
            _ => {}
        }
        1
    }

    /// Makes the last request so far ask for a completion.
    pub(super) fn ask_for_completion(&mut self) {
        if let Some(last) = self.items.back_mut() {
            last.signalled = true;
        } else if self.state.unsignalled > 0 {
            self.push(Request::Nothing, true);
        }
        self.state.unsignalled = 0;
    }

    fn push(&mut self, request: Request, signalled: bool) {
        let signalled = signalled || self.state.unsignalled + 1 >= self.how.quarter;
        self.state.unsignalled = if signalled { 0 } else { self.state.unsignalled + 1 };
        self.items.push_back(Item { request, signalled });
    }

    fn write(&mut self, to: &RegionBlob, to_offset: u64, from: &Origin, from_offset: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let piece = LARGEST.min(len - done);
            let inline = from.is_host_memory && piece <= u64::from(self.how.inline);
            let request = Request::Write {
                to: to.address + to_offset + done,
                key: to.data_key,
                from: from.address + from_offset + done,
                source: from.key,
                len: piece as u32,
                inline,
                immediate: None,
            };
            self.push(request, false);
            done += piece;
        }
    }

    fn update(&mut self, to: &RegionBlob, offset: u64, value: u64, previous: Option<u64>) {
        let (address, key) = (to.address + offset, to.update_key);
        let Some(previous) = previous else {
            if self.state.selected.is_some_and(|word| (word.region, word.offset) == (to.id, offset)) {
                self.state.selected = None;
            }
            return self.push(Request::Store { to: address, key, value }, true);
        };
        if !self.how.immediates {
            return self.push(Request::Add { to: address, key, by: value.wrapping_sub(previous) }, true);
        }
        if let Some(number) = self.immediate(to, offset, value) {
            let nothing = Request::Write {
                to: 0,
                key: 0,
                from: 0,
                source: 0,
                len: 0,
                inline: false,
                immediate: Some(number),
            };
            return self.push(nothing, true);
        }
        let select = Select { region: to.id, offset, value };
        self.state.selected = Some(select);
        self.state.messages += 1;
        self.push(Request::Message(select.encode()), true);
    }

    /// Returns the number for `value` if this is the selected word, and counts it as a message.
    fn immediate(&mut self, to: &RegionBlob, offset: u64, value: u64) -> Option<u32> {
        let word =
            self.state.selected.as_mut().filter(|word| (word.region, word.offset) == (to.id, offset))?;
        // The value has not risen by more than the lower half can express, so the peer knows the upper half.
        if !self.how.immediates || value.wrapping_sub(word.value) > u64::from(u32::MAX) {
            return None;
        }
        word.value = value;
        self.state.messages += 1;
        Some(value as u32)
    }
}

#[cfg(test)]
mod tests;
