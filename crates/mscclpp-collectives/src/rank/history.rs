//! The calls that a rank has made, and those that the others say they have made. Pure: no clocks, no messages.

use std::collections::VecDeque;

use crate::plan::described;

/// A collective in two words (see `plan::signature`), or the bytes of a message and 0.
pub(crate) type Words = [u64; 2];

/// How many calls of a list are kept, unless all are until they were compared.
const KEPT: u64 = 64;

/// The lists that a rank tells a peer: its collectives, its messages to this peer, and those that it takes from it.
pub(super) const LISTS: usize = 3;
const COLLECTIVES: usize = 0;
const SENT: usize = 1;
const TAKEN: usize = 2;

/// The peer's list that goes with each list of this rank.
const COUNTERPART: [usize; LISTS] = [COLLECTIVES, TAKEN, SENT];

/// Calls of one kind, numbered from 0. The last ones are kept.
#[derive(Debug, Default, Clone)]
struct List {
    first: u64,
    kept: VecDeque<Words>,
}

impl List {
    /// The number of calls so far.
    fn made(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    fn forget_before(&mut self, number: u64) {
        while self.first < number && self.kept.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn keep_last(&mut self) {
        self.forget_before(self.made().saturating_sub(KEPT));
    }

    fn get(&self, number: u64) -> Option<Words> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.kept.get(at).copied()
    }

    /// Adds what another rank says of its list: the number of the first call, and calls from there on.
    fn hear(&mut self, first: u64, calls: &[Words]) {
        if first > self.made() {
            *self = Self { first, kept: VecDeque::new() };
        }
        let known = usize::try_from(self.made() - first).unwrap_or(usize::MAX);
        self.kept.extend(calls.iter().skip(known));
    }
}

/// A call that two ranks have made differently.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// The peer's number in the group.
    pub(crate) peer: usize,
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

/// The calls of this rank and of its peers.
#[derive(Debug)]
pub(crate) struct History {
    /// The ranks of the group by their numbers in the job, as messages name them, and this rank's place among them.
    names: Vec<usize>,
    rank: usize,
    collectives: List,
    /// The messages of this rank to each, and from each.
    messages: Vec<[List; 2]>,
    theirs: Vec<[List; LISTS]>,
    /// Whether calls are kept until they were compared with those of all peers.
    compares: bool,
}

impl History {
    pub(crate) fn new(names: Vec<usize>, rank: usize, compares: bool) -> Self {
        let ranks = names.len();
        Self {
            names,
            rank,
            collectives: List::default(),
            messages: vec![Default::default(); ranks],
            theirs: vec![Default::default(); ranks],
            compares,
        }
    }

    /// Adds a collective of this rank. Returns a difference, if calls are compared and a peer has made another one.
    pub(crate) fn collective(&mut self, signature: Words) -> Option<Difference> {
        self.collectives.kept.push_back(signature);
        if !self.compares {
            self.collectives.keep_last();
            return None;
        }
        self.compare(self.peers())
    }

    /// Adds a message of this rank, in the same way.
    pub(crate) fn message(&mut self, peer: usize, receives: bool, bytes: u64) -> Option<Difference> {
        let list = &mut self.messages[peer][usize::from(receives)];
        list.kept.push_back([bytes, 0]);
        if !self.compares {
            list.keep_last();
            return None;
        }
        self.compare([peer])
    }

    /// The number of collectives so far.
    pub(crate) fn made(&self) -> u64 {
        self.collectives.made()
    }

    fn ours(&self, peer: usize, list: usize) -> &List {
        match list {
            COLLECTIVES => &self.collectives,
            _ => &self.messages[peer][list - SENT],
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.names.len()).filter(move |peer| *peer != rank)
    }

    /// Returns the first difference from some peers. Without one, forgets what was compared with all.
    fn compare(&mut self, peers: impl IntoIterator<Item = usize>) -> Option<Difference> {
        let found = peers.into_iter().find_map(|peer| self.difference(peer));
        if found.is_none() {
            self.forget_compared();
        }
        found
    }

    /// Forgets calls that were compared.
    fn forget_compared(&mut self) {
        let by_all = self.peers().map(|peer| self.theirs[peer][COLLECTIVES].made()).min();
        self.collectives.forget_before(by_all.unwrap_or(0));
        for peer in self.peers() {
            for (ours, list) in self.messages[peer].iter_mut().zip([SENT, TAKEN]) {
                ours.forget_before(self.theirs[peer][COUNTERPART[list]].made());
            }
            for (list, theirs) in COUNTERPART.into_iter().enumerate() {
                let made = self.ours(peer, list).made();
                self.theirs[peer][theirs].forget_before(made);
            }
        }
    }

    /// Returns what this rank tells a peer: for each list how many calls follow, the number of the first, and these. They are
    /// all that are kept from the numbers `from` on, which are moved behind them.
    pub(crate) fn told(&self, peer: usize, from: &mut [u64; LISTS]) -> Vec<u64> {
        let mut words = Vec::new();
        for (list, from) in from.iter_mut().enumerate() {
            let ours = self.ours(peer, list);
            let first = ours.first.max(*from);
            let calls = ours.kept.iter().skip((first - ours.first) as usize);
            words.extend([ours.made() - first, first]);
            words.extend(calls.flatten());
            *from = ours.made();
        }
        words
    }

    /// Adds what a peer tells. Returns the first difference, if calls are compared.
    ///
    /// # Errors
    /// A text that says why the words cannot be read.
    pub(crate) fn hear(&mut self, peer: usize, words: &[u64]) -> Result<Option<Difference>, String> {
        let mut rest = words;
        for list in &mut self.theirs[peer] {
            let said = rest.split_first_chunk::<2>().and_then(|([count, first], rest)| {
                let (calls, rest) = rest.split_at_checked(usize::try_from(count.checked_mul(2)?).ok()?)?;
                first.checked_add(*count)?;
                Some((*first, calls.as_chunks::<2>().0, rest))
            });
            let Some((first, calls, behind)) = said else {
                return Err(format!("it is cut after {} words", words.len()));
            };
            list.hear(first, calls);
            rest = behind;
        }
        if self.compares {
            return Ok(self.compare([peer]));
        }
        self.theirs[peer].iter_mut().for_each(List::keep_last);
        Ok(None)
    }

    /// Names a message with a peer that has one length where it is sent, and another where it is taken.
    pub(crate) fn lengths(&self, peer: usize, receives: bool, sent: u64, taken: u64) -> Difference {
        let send = |to| self.named([sent, 0], SENT, to);
        let recv = |from| self.named([taken, 0], TAKEN, from);
        let [ours, theirs] =
            if receives { [recv(peer), send(self.rank)] } else { [send(peer), recv(self.rank)] };
        Difference { peer, ours, theirs }
    }

    /// The first call that this rank and a peer have made differently, among those that are kept.
    fn difference(&self, peer: usize) -> Option<Difference> {
        (0..LISTS).find_map(|list| {
            let (ours, theirs) = (self.ours(peer, list), &self.theirs[peer][COUNTERPART[list]]);
            let both = ours.first.max(theirs.first)..ours.made().min(theirs.made());
            let (a, b) = both
                .filter_map(|number| Some((ours.get(number)?, theirs.get(number)?)))
                .find(|(ours, theirs)| ours != theirs)?;
            Some(Difference {
                peer,
                ours: self.named(a, list, peer),
                theirs: self.named(b, COUNTERPART[list], self.rank),
            })
        })
    }

    /// A call of a list in words; `other` is who the list is for.
    fn named(&self, words: Words, list: usize, other: usize) -> String {
        let (bytes, other) = (words[0], self.names[other]);
        match list {
            COLLECTIVES => described(words),
            SENT => format!("send of {bytes} bytes to rank {other}"),
            _ => format!("recv of {bytes} bytes from rank {other}"),
        }
    }

    /// The first call of this rank that a peer has not made as far as is known here, in words, with the peer.
    pub(crate) fn missing(&self) -> Option<String> {
        self.peers().find_map(|peer| self.missing_of(peer, u64::MAX))
    }

    fn missing_of(&self, peer: usize, collectives: u64) -> Option<String> {
        (0..LISTS).find_map(|list| {
            let (ours, made) = (self.ours(peer, list), self.theirs[peer][COUNTERPART[list]].made());
            let due = if list == COLLECTIVES { ours.made().min(collectives) } else { ours.made() };
            if made >= due {
                return None;
            }
            let what =
                ours.get(made).map_or_else(String::new, |it| format!(", {}", self.named(it, list, peer)));
            let number = if list == COLLECTIVES { "call" } else { "its part of message" };
            Some(format!("rank {}, which has not made {number} {made}{what}", self.names[peer]))
        })
    }

    /// Returns in words what keeps the collectives before number `due`, and the messages. Collectives before `done` are
    /// complete. `answered` says for each rank whether it has told what it has made.
    pub(crate) fn waited_for(&self, done: u64, due: u64, answered: &[bool]) -> String {
        let first = || match self.collectives.get(done) {
            Some(words) if done < due => format!("{}, call {done}", described(words)),
            _ if done < due => format!("call {done}"),
            _ => "messages".to_owned(),
        };
        let (known, silent): (Vec<_>, Vec<_>) = self.peers().partition(|peer| answered[*peer]);
        let mut found: Vec<String> = known.iter().filter_map(|peer| self.missing_of(*peer, due)).collect();
        for peer in &silent {
            let name = self.names[*peer];
            found.push(format!("rank {name}, which does not answer, in {}", first()));
        }
        let different = known.iter().find_map(|peer| self.difference(*peer));
        if let Some(Difference { peer, ours, theirs }) = different {
            found.insert(
                0,
                format!(
                    "rank {}, which called {theirs}, while this rank called {ours}: MSCCLPP_CHECK_CALLS=1 makes that an error",
                    self.names[peer]
                ),
            );
        }
        if found.is_empty() {
            return format!("{}, which all ranks have made and whose kernels are not complete", first());
        }
        found.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signatures of calls; only their texts have a meaning here.
    const SUM: Words = [1 | 1 << 8, 1000];
    const MAX: Words = [1 | 3 << 8, 1000];

    /// The histories of ranks 10, 20 and 30 of a job.
    fn three(compares: bool) -> [History; 3] {
        [0, 1, 2].map(|rank| History::new(vec![10, 20, 30], rank, compares))
    }

    /// Tells `to` all that `from` has made.
    fn tell(from: &History, to: &mut History) -> Option<Difference> {
        to.hear(from.rank, &from.told(to.rank, &mut [0; LISTS])).expect("it is whole")
    }

    #[test]
    fn the_rank_that_has_not_made_a_call_is_named_with_the_call() {
        let [mut a, mut b, mut c] = three(false);
        for _ in 0..100 {
            assert_eq!([&mut a, &mut b, &mut c].map(|history| history.collective(SUM)), [const { None }; 3]);
        }
        assert_eq!([&mut a, &mut b].map(|history| history.collective(MAX)), [None, None]);
        assert!(tell(&b, &mut a).is_none() && tell(&c, &mut a).is_none());
        let text = a.waited_for(90, 101, &[false, true, true]);
        let max = described(MAX);
        assert_eq!(text, format!("rank 30, which has not made call 100, {max}"));
        let text = a.waited_for(100, 101, &[false, true, false]);
        assert_eq!(text, format!("rank 30, which does not answer, in {max}, call 100"));
        c.collective(MAX);
        tell(&c, &mut a);
        let text = a.waited_for(100, 101, &[false, true, true]);
        assert_eq!(
            text,
            format!("{max}, call 100, which all ranks have made and whose kernels are not complete")
        );
        assert_eq!(a.collectives.kept.len(), KEPT as usize);
        assert_eq!(a.theirs[2][COLLECTIVES].kept.len(), KEPT as usize);
    }

    #[test]
    fn messages_that_the_peer_has_not_made_are_named() {
        let [mut a, b, _] = three(false);
        a.message(1, true, 40);
        tell(&b, &mut a);
        let text = a.waited_for(0, 0, &[false, true, true]);
        assert_eq!(text, "rank 20, which has not made its part of message 0, recv of 40 bytes from rank 20");
    }

    #[test]
    fn calls_that_differ_are_named_on_both_ranks() {
        let [mut a, mut b, _] = three(false);
        a.collective(SUM);
        b.collective(MAX);
        assert!(tell(&b, &mut a).is_none(), "nobody has asked for it");
        let text = a.waited_for(0, 1, &[false, true, true]);
        assert!(text.starts_with("rank 20, which called all_reduce (Max)"), "{text}");
        assert!(text.contains("MSCCLPP_CHECK_CALLS=1"), "{text}");

        let [mut a, mut b, _] = three(true);
        assert_eq!(a.collective(SUM), None);
        assert_eq!(tell(&a, &mut b), None);
        let found = b.collective(MAX).expect("it differs");
        assert_eq!((found.peer, found.ours, found.theirs), (0, described(MAX), described(SUM)));
        let found = tell(&b, &mut a).expect("it differs here, too");
        assert_eq!((found.peer, found.ours, found.theirs), (1, described(SUM), described(MAX)));
    }

    #[test]
    fn sizes_of_messages_that_differ_are_named_on_both_ranks() {
        let [mut a, mut b, _] = three(true);
        for bytes in [8, 4096] {
            assert_eq!(a.message(1, false, bytes), None);
        }
        assert_eq!(b.message(0, true, 8), None);
        assert_eq!(tell(&a, &mut b), None);
        let found = b.message(0, true, 40).expect("it differs");
        assert_eq!(found.ours, "recv of 40 bytes from rank 10");
        assert_eq!(found.theirs, "send of 4096 bytes to rank 20");
        assert_eq!(tell(&b, &mut a).expect("it differs here, too").ours, "send of 4096 bytes to rank 20");
    }

    #[test]
    fn calls_are_kept_until_all_ranks_have_made_them() {
        let [mut a, mut b, mut c] = three(true);
        for _ in 0..200 {
            a.collective(SUM);
            b.collective(SUM);
        }
        assert_eq!(tell(&b, &mut a), None);
        assert_eq!(a.collectives.kept.len(), 200);
        assert!(a.missing().expect("one has made none").starts_with("rank 30, which has not made call 0, "));
        (0..200).for_each(|_| assert_eq!(c.collective(SUM), None));
        assert_eq!(tell(&c, &mut a), None);
        assert_eq!((a.collectives.kept.len(), a.missing()), (0, None));
        assert!(a.theirs.iter().flatten().all(|list| list.kept.is_empty()));
    }

    #[test]
    fn words_that_are_cut_are_refused() {
        let [mut a, mut b, _] = three(true);
        b.collective(SUM);
        let words = b.told(0, &mut [0; LISTS]);
        for cut in 0..words.len() {
            assert!(a.hear(1, &words[..cut]).expect_err("it is cut").contains("cut"), "{cut}");
        }
        assert!(a.hear(1, &[u64::MAX, 0]).is_err() && a.hear(1, &[2, u64::MAX, 0, 0, 0, 0]).is_err());
        let mut from = [0; LISTS];
        assert_eq!(b.told(0, &mut from).len(), 8);
        assert_eq!((b.told(0, &mut from), from[0]), (vec![0, 1, 0, 0, 0, 0], 1));
    }
}
