//! How ranks of a group tell each other words of 64 bits.
//!
//! The first rank of the group takes what each of the others sends, and sends everybody what all have sent: 2 (N - 1)
//! messages. The `all_gather` of the bootstrap needs as few, but all its collective calls are in one order on all
//! ranks. Two threads that agree with two communicators at the same time have no such order, so they would end the job
//! with an error. The messages here have tags, and those of different tags do not disturb each other. They serve a
//! part of the job's ranks as well as all.
//!
//! Each message has an envelope: a mark, a version, a kind, and the length of what follows. The first rank passes the
//! messages of the others on as they came. So all ranks find the same fault in them, and name the same rank. If a rank
//! has left before it sent its own, the first rank says so to the others, which would else wait for it.

use mscclpp_bootstrap::Error as BootstrapError;

use crate::{Error, Result};

use super::group::Group;

const MARK: [u8; 4] = *b"mscw";
const VERSION: u8 = 1;
/// The bytes in front of what a message carries: mark, version, kind, two zeros, length.
const ENVELOPE: usize = 16;

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Carries {
    /// The words of a rank.
    Words = 1,
    /// The messages of all ranks, each behind its length.
    All = 2,
    /// The number in the job of a rank that has left.
    Left = 3,
    /// The words of a rank for one other, which need not wait for them.
    Told = 4,
}

impl Group {
    /// Returns the words that every rank gives, in the order of the group. Blocks.
    ///
    /// # Errors
    /// [`Error::Malformed`] on all ranks if one gives another number of words; [`Error::Bootstrap`] if a rank is lost or has
    /// left.
    pub fn all_gather<const N: usize>(&self, words: [u64; N]) -> Result<Vec<[u64; N]>> {
        let all = self.all_gather_list(&words, Some(N))?;
        Ok(all.iter().map(|words| std::array::from_fn(|i| words[i])).collect())
    }

    /// The same as [`Self::all_gather`], of ranks that give as many words as they like, or each `expected`.
    ///
    /// # Errors
    /// The same as of [`Self::all_gather`].
    pub fn all_gather_list(&self, words: &[u64], expected: Option<usize>) -> Result<Vec<Vec<u64>>> {
        let own: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = self.gather(sealed(Carries::Words, &own))?;
        let words = all.iter().enumerate().map(|(r, message)| {
            opened(Carries::Words, message)
                .and_then(|bytes| words_of(bytes, expected))
                .map_err(|problem| self.malformed(r, problem))
        });
        words.collect()
    }

    /// The message of every rank, as it was sent.
    fn gather(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        if self.rank == 0 { self.collect(own) } else { self.ask(&own) }
    }

    /// The part of the first rank.
    fn collect(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let bootstrap = self.bootstrap();
        let mut all = vec![own];
        let mut left = None;
        for r in self.others() {
            match bootstrap.recv(self.ranks[r], self.tag) {
                Ok(message) => all.push(message),
                Err(BootstrapError::PeerClosed { rank }) => {
                    left = Some(rank);
                    break;
                }
                // The others have this error, too: it ends the job.
                Err(error) => return Err(error.into()),
            }
        }
        let answer = match left {
            None => sealed(Carries::All, &behind_lengths(&all)),
            Some(rank) => sealed(Carries::Left, &(rank as u64).to_le_bytes()),
        };
        // Everybody is notified, also if a rank that has given its words has left since.
        let notified = self.others().map(|r| bootstrap.send(&answer, self.ranks[r], self.tag));
        let notified = notified.fold(Ok(()), Result::and);
        match left {
            None => Ok(notified.map(|()| all)?),
            Some(rank) => Err(BootstrapError::PeerClosed { rank }.into()),
        }
    }

    /// The part of every other rank.
    fn ask(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (bootstrap, first) = (self.bootstrap(), self.ranks[0]);
        bootstrap.send(own, first, self.tag)?;
        let answer = bootstrap.recv(first, self.tag)?;
        let malformed = |problem| self.malformed(0, problem);
        if let Ok(left) = opened(Carries::Left, &answer) {
            let rank = words_of(left, Some(1)).map_err(malformed)?[0];
            let rank = usize::try_from(rank).ok().filter(|rank| self.ranks.contains(rank));
            let rank =
                rank.ok_or_else(|| malformed(format!("it names a rank of {:?} that is none", self.ranks)))?;
            return Err(BootstrapError::PeerClosed { rank }.into());
        }
        let all = opened(Carries::All, &answer).and_then(|all| of_lengths(all, self.ranks.len()));
        all.map_err(malformed)
    }

    /// Sends words to rank `r` of the group, which takes them with [`Self::told_by`] of a group with the same tag. Does not
    /// block. Nothing else is told under that tag: a group of [`Self::telling`] has one of its own.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] if the rank is lost or has left.
    pub fn tell(&self, r: usize, words: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(self.bootstrap().send(&sealed(Carries::Told, &bytes), self.ranks[r], self.tag)?)
    }

    /// Returns the next words that rank `r` has sent with [`Self::tell`], if some have come. Does not block.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a message that `tell` did not send; [`Error::Bootstrap`] if the rank is lost or has left.
    pub fn told_by(&self, r: usize) -> Result<Option<Vec<u64>>> {
        let Some(message) = self.bootstrap().try_recv(self.ranks[r], self.tag)? else { return Ok(None) };
        opened(Carries::Told, &message)
            .and_then(|bytes| words_of(bytes, None))
            .map(Some)
            .map_err(|problem| self.malformed(r, problem))
    }

    /// The error for a message of rank `r` of the group that is not what it should be.
    #[must_use]
    pub fn malformed(&self, r: usize, problem: String) -> Error {
        let (rank, other) = (self.ranks[self.rank], self.ranks[r]);
        Error::Malformed { engine: self.engine, rank, other, problem }
    }
}

fn sealed(carries: Carries, bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(ENVELOPE + bytes.len());
    message.extend(MARK);
    message.extend([VERSION, carries as u8, 0, 0]);
    message.extend((bytes.len() as u64).to_le_bytes());
    message.extend(bytes);
    message
}

/// Returns the content of a message, or what is wrong with it.
fn opened(carries: Carries, message: &[u8]) -> Result<&[u8], String> {
    let came = message.len();
    let Some((envelope, bytes)) = message.split_first_chunk::<ENVELOPE>() else {
        return Err(format!("it has {came} bytes, and {ENVELOPE} or more were expected"));
    };
    let [m0, m1, m2, m3, version, kind, _, _, length @ ..] = *envelope;
    let due = carries as u8;
    if [m0, m1, m2, m3] != MARK {
        let mark = [m0, m1, m2, m3];
        return Err(format!(
            "it begins with {mark:02x?}, and {MARK:02x?} was expected: is its tag used for something else?"
        ));
    }
    if version != VERSION || kind != due {
        return Err(format!(
            "it has version {version} and kind {kind}, and version {VERSION} and kind {due} were expected"
        ));
    }
    let length = u64::from_le_bytes(length);
    if bytes.len() as u64 != length {
        let expected = length.saturating_add(ENVELOPE as u64);
        return Err(format!("it has {came} bytes, and {expected} were expected"));
    }
    Ok(bytes)
}

/// The words that bytes are: `expected` of them, or any number.
fn words_of(bytes: &[u8], expected: Option<usize>) -> Result<Vec<u64>, String> {
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || expected.is_some_and(|expected| words.len() != expected) {
        let came = bytes.len();
        let expected = expected.map_or_else(|| "a multiple of 8".to_owned(), |words| (8 * words).to_string());
        return Err(format!("it carries {came} bytes, and {expected} were expected"));
    }
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn behind_lengths(messages: &[Vec<u8>]) -> Vec<u8> {
    messages
        .iter()
        .flat_map(|message| [&(message.len() as u64).to_le_bytes(), &message[..]].concat())
        .collect()
}

/// The inverse of [`behind_lengths`], for `count` messages.
fn of_lengths(mut bytes: &[u8], count: usize) -> Result<Vec<Vec<u8>>, String> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = u64::from_le_bytes(*length);
        let cut = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
        let Some((message, rest)) = cut else {
            return Err(format!("the message of {length} bytes in it is cut after {}", rest.len()));
        };
        messages.push(message.to_vec());
        bytes = rest;
    }
    if messages.len() != count || !bytes.is_empty() {
        let (came, rest) = (messages.len(), bytes.len());
        return Err(format!(
            "it has the messages of {came} ranks and {rest} bytes more, and {count} were expected"
        ));
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        sealed(Carries::Words, &[7u64, 8].map(u64::to_le_bytes).concat())
    }

    #[test]
    fn words_are_read_as_they_were_sent() {
        let message = message();
        let read = |expected| opened(Carries::Words, &message).and_then(|bytes| words_of(bytes, expected));
        assert_eq!([read(None), read(Some(2))], [(); 2].map(|()| Ok(vec![7, 8])));
        assert_eq!(read(Some(3)), Err("it carries 16 bytes, and 24 were expected".to_owned()));
    }

    #[test]
    fn a_message_that_is_cut_lengthened_or_changed_is_refused_with_both_values() {
        let message = message();
        let refused = |bytes: &[u8]| opened(Carries::Words, bytes).unwrap_err();
        assert_eq!(refused(&message[..15]), "it has 15 bytes, and 16 or more were expected");
        for len in 16..message.len() {
            assert_eq!(refused(&message[..len]), format!("it has {len} bytes, and 32 were expected"));
        }
        assert_eq!(refused(&[&message[..], &[0]].concat()), "it has 33 bytes, and 32 were expected");
        let with = |at: usize, byte: u8| {
            let mut message = message.clone();
            message[at] = byte;
            refused(&message)
        };
        assert!(
            with(0, b'x').starts_with("it begins with [78, 73, 63, 77], and [6d, 73, 63, 77] was expected")
        );
        assert_eq!(with(4, 9), "it has version 9 and kind 1, and version 1 and kind 1 were expected");
        assert_eq!(with(5, 3), "it has version 1 and kind 3, and version 1 and kind 1 were expected");
        assert_eq!(with(15, 0xff), "it has 32 bytes, and 18374686479671623712 were expected");
        assert_eq!(
            words_of(&[0; 12], None),
            Err("it carries 12 bytes, and a multiple of 8 were expected".to_owned())
        );
    }

    #[test]
    fn messages_of_all_ranks_are_cut_where_they_end() {
        let all = vec![message(), Vec::new(), vec![1]];
        let bytes = behind_lengths(&all);
        assert_eq!(of_lengths(&bytes, 3), Ok(all));
        for len in 0..bytes.len() {
            assert!(of_lengths(&bytes[..len], 3).is_err(), "{len}");
        }
        assert!(of_lengths(&bytes, 2).is_err() && of_lengths(&bytes, 4).is_err());
        assert!(of_lengths(&[0xff; 64], 3).is_err());
    }

    #[test]
    fn bytes_of_any_kind_are_read_with_bounds() {
        let mut random = mscclpp_test_support::Random::new();
        let all = behind_lengths(&[message(), message()]);
        for _ in 0..20_000 {
            let mut bytes = all.clone();
            for _ in 0..random.of(0..=3) {
                let at = random.below(bytes.len());
                bytes[at] = random.word() as u8;
            }
            bytes.truncate(random.below(all.len() + 1));
            for message in of_lengths(&bytes, 2).unwrap_or_default().iter().chain([&bytes]) {
                if let Ok(bytes) = opened(Carries::Words, message) {
                    assert!(words_of(bytes, None).is_err() || bytes.len().is_multiple_of(8));
                }
            }
        }
    }
}
