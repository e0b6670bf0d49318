//! Tables that grow while the proxy's thread reads them without a lock.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::{Error, Result};

/// A table of up to a fixed number of entries, which keep their numbers and are never removed.
pub(crate) struct Table<T> {
    what: &'static str,
    entries: Box<[OnceLock<T>]>,
    /// The number of entries that are set; held while one is added.
    len: Mutex<usize>,
}

impl<T> Table<T> {
    /// Makes an empty table. `what` names its entries in errors, in the plural.
    pub(crate) fn new(what: &'static str, limit: u32) -> Self {
        Self { what, entries: (0..limit).map(|_| OnceLock::new()).collect(), len: Mutex::new(0) }
    }

    /// Adds an entry, made for its number.
    pub(crate) fn add(&self, make: impl FnOnce(u32) -> Result<T>) -> Result<u32> {
        let mut len = self.len.lock();
        let Some(entry) = self.entries.get(*len) else { return Err(self.too_many(1, *len)) };
        let number = *len as u32;
        // Under the lock, an entry from `len` on is not set.
        let _ = entry.set(make(number)?);
        *len += 1;
        Ok(number)
    }

    /// Returns the number of the first of the next `count` entries.
    pub(crate) fn next(&self, count: u32) -> Result<u32> {
        let len = *self.len.lock();
        match len + count as usize <= self.entries.len() {
            true => Ok(len as u32),
            false => Err(self.too_many(count, len)),
        }
    }

    /// Returns the entry of that number.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.get()
    }

    /// The same as [`Table::get`], but an error if there is no such entry; `what` names an entry in it, in the
    /// singular. Takes no lock.
    pub(crate) fn find(&self, what: &'static str, id: u32) -> Result<&T> {
        self.get(id).ok_or_else(|| Error::UnknownId { what, id, count: self.iter().count() as u64 })
    }

    /// Returns all entries, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map_while(OnceLock::get)
    }

    fn too_many(&self, wanted: u32, used: usize) -> Error {
        let limit = self.entries.len() as u64;
        Error::TooMany { what: self.what, wanted: wanted.into(), used: used as u64, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_numbers_up_to_the_limit() {
        let table = Table::new("things", 3);
        assert!(table.add(|_| Err(Error::InvalidArgument("not this one".to_owned()))).is_err());
        for n in 0..3 {
            assert_eq!(table.next(3 - n).unwrap(), n);
            assert_eq!(table.add(|number| Ok(10 * number)).unwrap(), n);
        }
        assert_eq!(table.iter().copied().collect::<Vec<_>>(), [0, 10, 20]);
        assert_eq!(
            table.add(Ok).unwrap_err().to_string().split(':').next(),
            Some("1 more things do not fit")
        );
        assert!(table.next(1).is_err() && table.next(0).is_ok());
        assert!(matches!(table.find("thing", 3), Err(Error::UnknownId { id: 3, count: 3, .. })));
    }

    #[test]
    fn an_unknown_number_is_found_while_an_entry_is_made() {
        let table = Table::new("things", 3);
        let number = table.add(|_| {
            assert!(matches!(table.find("thing", 2), Err(Error::UnknownId { id: 2, count: 0, .. })));
            Ok(())
        });
        assert_eq!(number.unwrap(), 0);
    }
}
