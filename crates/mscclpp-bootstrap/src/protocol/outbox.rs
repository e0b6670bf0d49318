//! The frames that are still to be written to a connection.
//!
//! # Credit
//! Frames of messages are held back while [`WINDOW`] bytes of them are on their way that the peer's bootstrap has not
//! taken in. The window is smaller than the receive buffer, so the system of a peer whose process is stopped can
//! still acknowledge everything that is sent. So `TCP_USER_TIMEOUT` ends only connections to a vanished node, and a
//! stopped process does not count as dead. Other frames are not held back, except for those that must come after a message. They
//! are few and small, apart from those of the table.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::inbox::Sending;
use crate::protocol::frame::{self, Kind};

/// The most bytes of messages that may be under way.
pub const WINDOW: usize = 64 * 1024;

struct Item {
    bytes: Arc<Vec<u8>>,
    /// Whether the frame counts against the window.
    counted: bool,
    /// The flags to return when the frame has been written.
    written: Option<Arc<Sending>>,
}

/// A queue of frames, and how much of the first has been written.
#[derive(Default)]
pub struct Outbox {
    items: VecDeque<Item>,
    offset: usize,
    under_way: usize,
}

impl Outbox {
    /// Queues a frame that is no part of a message.
    pub fn push(&mut self, bytes: impl Into<Arc<Vec<u8>>>) {
        self.items.push_back(Item { bytes: bytes.into(), counted: false, written: None });
    }

    /// Queues a frame in front of all frames of which nothing has been written yet.
    pub fn push_urgent(&mut self, bytes: Vec<u8>) {
        let at = usize::from(self.offset > 0);
        self.items.insert(at, Item { bytes: bytes.into(), counted: false, written: None });
    }

    /// Queues the frames of a message. [`advance`](Self::advance) returns `written` when the last has been written.
    pub fn push_message(&mut self, frames: Vec<Vec<u8>>, written: Option<Arc<Sending>>) {
        for bytes in frames {
            self.items.push_back(Item { bytes: bytes.into(), counted: true, written: None });
        }
        if let Some(last) = self.items.back_mut() {
            last.written = written;
        }
    }

    /// Notes that the peer has taken in this many bytes of messages.
    pub fn credit(&mut self, bytes: usize) {
        self.under_way = self.under_way.saturating_sub(bytes);
    }

    /// Drops the frames of which nothing has been written yet.
    pub fn clear(&mut self) {
        self.items.truncate(usize::from(self.offset > 0));
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the bytes to write next; empty if there are none or the window is full.
    pub fn pending(&self) -> &[u8] {
        match self.items.front() {
            Some(item) if self.offset == 0 && item.counted && self.under_way >= WINDOW => &[],
            Some(item) => &item.bytes[self.offset..],
            None => &[],
        }
    }

    /// Notes that this many of the pending bytes were written. Returns the flags of a message that is thereby
    /// complete.
    pub fn advance(&mut self, written: usize) -> Option<Arc<Sending>> {
        let item = self.items.front()?;
        self.offset += written;
        if item.counted {
            self.under_way += written;
        }
        if self.offset < item.bytes.len() {
            return None;
        }
        self.offset = 0;
        self.items.pop_front()?.written
    }
}

/// Counts the bytes that were taken in, and decides when to tell the peer.
#[derive(Default)]
pub struct Intake {
    unreported: usize,
}

impl Intake {
    /// Counts a frame of a message that has arrived. Returns the frame to send once enough bytes have come.
    pub fn take(&mut self, payload: usize) -> Option<Vec<u8>> {
        self.unreported += payload + frame::HEADER;
        if self.unreported < WINDOW / 2 {
            return None;
        }
        let credit = std::mem::take(&mut self.unreported) as u32;
        Some(frame::encode(Kind::Credit, &credit.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Channel;
    use crate::protocol::message;

    /// Writes everything that can be written. Returns the number of bytes.
    fn drain(outbox: &mut Outbox) -> usize {
        let mut total = 0;
        loop {
            let n = outbox.pending().len().min(1000);
            if n == 0 {
                return total;
            }
            outbox.advance(n);
            total += n;
        }
    }

    #[test]
    fn a_full_window_stops_messages_until_there_is_credit() {
        let mut outbox = Outbox::default();
        let frames = message::frames(Channel::User, 0, 0, &vec![0; 10 * WINDOW]);
        let total: usize = frames.iter().map(Vec::len).sum();
        outbox.push_message(frames, None);
        let mut sent = drain(&mut outbox);
        // A frame that has begun is finished, so the window may be exceeded by less than a frame.
        assert!((WINDOW..WINDOW + frame::MAX_PAYLOAD + frame::HEADER).contains(&sent));
        outbox.push_urgent(frame::encode(Kind::Credit, &[0; 4]));
        assert_eq!(drain(&mut outbox), frame::HEADER + 4, "what is no message needs no credit");
        while sent < total {
            outbox.credit(WINDOW / 2);
            let more = drain(&mut outbox);
            assert!(more > 0);
            sent += more;
        }
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_frame_that_has_begun_is_finished_first() {
        let mut outbox = Outbox::default();
        outbox.push(vec![1; 10]);
        outbox.push(vec![2; 10]);
        outbox.advance(4);
        outbox.push_urgent(vec![3; 2]);
        assert_eq!(outbox.pending(), [1; 6]);
        outbox.clear();
        outbox.push(vec![4; 3]);
        outbox.advance(6);
        assert_eq!(outbox.pending(), [4; 3]);
    }

    #[test]
    fn the_writer_of_a_message_is_told() {
        let flag = Arc::new(Sending::default());
        let mut outbox = Outbox::default();
        outbox.push_message(vec![vec![0; 3], vec![0; 3]], Some(Arc::clone(&flag)));
        assert!(outbox.advance(3).is_none());
        assert!(outbox.advance(2).is_none());
        assert!(Arc::ptr_eq(&outbox.advance(1).unwrap(), &flag));
    }

    #[test]
    fn intake_tells_before_the_window_is_full() {
        let mut intake = Intake::default();
        let mut told = 0;
        for _ in 0..1000 {
            if let Some(frame) = intake.take(100) {
                told += u32::from_le_bytes(frame[frame::HEADER..].try_into().unwrap()) as usize;
            }
        }
        assert!(1000 * (100 + frame::HEADER) - told < WINDOW / 2);
    }
}
