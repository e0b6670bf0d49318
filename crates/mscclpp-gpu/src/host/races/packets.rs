//! Packets that are overwritten before they were read. They are atomic, so that is no race; but who polls for one waits for ever.

use super::{
    record::Record,
    shadow::{Page, offset},
};

/// A packet is written or polled for. Returns the one that was lost, and what took its place, if the thread polls where that
/// happened.
///
/// A packet that nobody reads may be replaced; so it is lost only if somebody still polls there.
pub(super) fn accessed(
    page: &mut Page,
    address: usize,
    bytes: usize,
    record: &Record,
) -> Option<(Record, Record)> {
    let key = offset(address & !7) as u16;
    if !record.how.is_write() {
        let word = page.words.get_mut(&key)?;
        let (packet, other) = word.lost.take()?;
        return (packet.key() != record.key()).then_some((packet, other));
    }
    let bytes = (!0u8 >> (8 - bytes)) << (address % 8);
    let there = || page.records(address).iter().filter(|there| there.bytes & bytes != 0);
    let unread = there().find(|there| there.how.is_write() && there.how.is_packet()).copied();
    if let Some(packet) = unread.filter(|_| there().all(|there| there.how.is_write())) {
        page.words.entry(key).or_default().lost = Some((packet, *record));
    } else if let Some(word) = page.words.get_mut(&key) {
        word.lost = None;
    }
    None
}
