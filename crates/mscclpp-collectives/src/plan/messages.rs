//! Messages between two ranks, gathered into launches.

use crate::{
    Error, Result,
    handle::{MANY_MESSAGES, Message},
};

/// The messages of one launch to and from each rank.
pub(crate) type Batch<'a> = Vec<[&'a [Message]; 2]>;

/// The sends and receives of one call, by peer, in the order in which they were given.
pub(crate) struct Messages {
    of: Vec<[Vec<Message>; 2]>,
}

impl Messages {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { of: (0..ranks).map(|_| [Vec::new(), Vec::new()]).collect() }
    }

    pub(crate) fn add(&mut self, peer: usize, receives: bool, message: Message) {
        // What has no bytes is not waited for. The two ranks know that alike.
        if message.bytes > 0 {
            self.of[peer][usize::from(receives)].push(message);
        }
    }

    /// The messages that rank `peer` is sent, and those that it sends.
    pub(crate) fn of(&self, peer: usize) -> &[Vec<Message>; 2] {
        &self.of[peer]
    }

    /// The copies that are sends of this rank to itself: from where, and to where.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if not every one of them is received, as it was sent.
    pub(crate) fn own(&self, rank: usize) -> Result<Vec<(Message, Message)>> {
        let [sent, received] = &self.of[rank];
        let bytes = |messages: &[Message]| messages.iter().map(|message| message.bytes).collect::<Vec<_>>();
        if bytes(sent) != bytes(received) {
            return Err(Error::InvalidArgument(format!(
                "rank {rank} sends itself messages of {:?} bytes and receives {:?}; give both in one call",
                bytes(sent),
                bytes(received)
            )));
        }
        Ok(sent.iter().copied().zip(received.iter().copied()).collect())
    }

    /// The launches that the others take. The n-th message of two ranks is in the same launch on both sides, so no
    /// launch waits for a later one.
    pub(crate) fn batches(&self, rank: usize) -> Vec<Batch<'_>> {
        let ranks = self.of.len();
        // Each peer and direction has the same share of a launch, since a peer does not know what others send.
        let each = MANY_MESSAGES / (2 * (ranks - 1).max(1));
        let of = |peer: usize| {
            if peer == rank { [&[][..]; 2] } else { self.of[peer].each_ref().map(Vec::as_slice) }
        };
        let most = (0..ranks).flat_map(of).map(<[_]>::len).max().unwrap_or(0);
        let batch = |n| {
            let due = |messages| <[_]>::chunks(messages, each).nth(n).unwrap_or(&[]);
            (0..ranks).map(|peer| of(peer).map(due)).collect()
        };
        (0..most.div_ceil(each)).map(batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use mscclpp::DevicePtr;

    use super::*;

    fn message(bytes: u64) -> Message {
        Message { memory: DevicePtr(bytes), bytes }
    }

    #[test]
    fn the_nth_message_is_in_the_same_batch_on_both_sides() {
        let mut messages = Messages::new(3);
        (1..=120).for_each(|n| messages.add(2, false, message(n)));
        messages.add(0, true, message(9));
        messages.add(0, true, message(0));
        messages.add(1, true, message(1));
        let batches = messages.batches(1);
        assert_eq!(batches.len(), 3);
        let numbers = |batch: usize, peer: usize, receives: usize| {
            batches[batch][peer][receives].iter().map(|message| message.bytes).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0, 2, 0), (1..=55).collect::<Vec<_>>());
        assert_eq!(numbers(2, 2, 0), (111..=120).collect::<Vec<_>>());
        assert_eq!((numbers(0, 0, 1), numbers(1, 0, 1)), (vec![9], vec![]));
        assert_eq!((numbers(0, 1, 1), numbers(0, 2, 1)), (vec![], vec![]));
        assert!(Messages::new(3).batches(0).is_empty());
    }

    #[test]
    fn what_a_rank_sends_itself_it_receives() {
        let mut messages = Messages::new(2);
        messages.add(1, false, message(8));
        assert!(messages.own(1).unwrap_err().to_string().contains("messages of [8] bytes and receives []"));
        messages.add(1, true, Message { memory: DevicePtr(64), bytes: 8 });
        assert_eq!(messages.own(1).unwrap().len(), 1);
        assert!(messages.batches(1).is_empty());
        assert!(messages.own(0).unwrap().is_empty());
    }
}
