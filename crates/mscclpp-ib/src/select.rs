//! The format of signals that are sent without atomics.
//!
//! If the peer's adapter or ours has no atomics, the peer sends numbers instead of adding to tokens. First it selects
//! a token, by a message ([`Select`]) with the token's region, offset and value; this value is stored. Then numbers
//! come, alone or with data. Each is the lower half of the next value to store. A value grows by less than 2^32 from
//! one number to the next, so the upper half is known.
//!
//! Each number takes a receive. The adapter reports it once everything that the peer sent before has arrived. A
//! thread then stores the value with release order.

/// A message that selects the token to which the following numbers belong, and stores a value in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Select {
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) value: u64,
}

/// The first word of a message.
const SELECT: u64 = u64::from_le_bytes(*b"select\0\x01");

impl Select {
    pub(crate) fn encode(self) -> [u64; 4] {
        [SELECT, self.region, self.offset, self.value].map(u64::to_le)
    }

    pub(crate) fn decode(words: [u64; 4]) -> Option<Self> {
        let [kind, region, offset, value] = words.map(u64::from_le);
        (kind == SELECT).then_some(Self { region, offset, value })
    }

    /// Returns the next value whose lower half is `lower`.
    pub(crate) fn next(&self, lower: u32) -> u64 {
        self.value.wrapping_add(lower.wrapping_sub(self.value as u32).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_past_32_bits() {
        let mut token = Select { region: 1, offset: 8, value: u64::from(u32::MAX) - 2 };
        for _ in 0..10 {
            let due = token.value + 1;
            assert_eq!(token.next(due as u32), due);
            token.value = due;
        }
        let far = token.value + u64::from(u32::MAX);
        assert_eq!(token.next(far as u32), far, "as far as a number can tell");
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let select = Select { region: 3, offset: 16, value: u64::MAX };
        assert_eq!(Select::decode(select.encode()), Some(select));
        assert_eq!(Select::decode([0; 4]), None);
    }
}
