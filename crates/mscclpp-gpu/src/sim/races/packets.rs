//! Packets that are overwritten before they were read. They are atomic, so that is no race; but who polls for one waits for ever.

use super::{record::Record, shadow::Page, words::Location};

/// A packet is written or polled for. Returns the one that was lost, and what took its place, if the thread polls where that
/// happened.
///
/// A packet that nobody reads may be replaced; so it is lost only if somebody still polls there.
pub(super) fn accessed(page: &mut Page, place: Location, record: &Record) -> Option<(Record, Record)> {
    if !record.how.is_write() {
        let word = page.words.get_mut(place)?;
        let (packet, other) = word.lost.take()?;
        return (packet.key() != record.key()).then_some((packet, other));
    }
    let there = || page.records(place.address).iter().filter(|there| there.bytes & place.mask() != 0);
    let unread = there().find(|there| there.how.is_write() && there.how.is_packet()).copied();
    if let Some(packet) = unread.filter(|_| there().all(|there| there.how.is_write())) {
        page.words.get_or_insert(place).lost = Some((packet, *record));
    } else if let Some(word) = page.words.get_mut(place) {
        word.lost = None;
    }
    None
}
