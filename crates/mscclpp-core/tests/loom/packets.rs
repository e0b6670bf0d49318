//! Packets: whoever takes one has all of its data, of that round. With the order or the flags weakened, that fails.

use std::sync::{Arc, atomic::Ordering};

use loom::thread;
use mscclpp_core::protocol::{SharedWord, StatusWords};

use super::{
    Status, Word32, Word64, backoff,
    kernels::{LL8Packet, LL16Packet, LL128Packet, PacketFormat},
    model,
};

/// A format in which only the last word has a flag, with all accesses relaxed: LL8 and LL16 would be like this if
/// each word did not carry its own flag.
struct FlagApart<const DATA_WORDS: usize>;

impl<const DATA_WORDS: usize> PacketFormat for FlagApart<DATA_WORDS> {
    const WORDS: usize = DATA_WORDS + 1;
    type Payload = [u8; 4];
    const ZEROS: [u8; 4] = [0; 4];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 4], flag: u32) {
        words[..DATA_WORDS].iter().for_each(|word| word.store(payload[0].into(), Ordering::Relaxed));
        words[DATA_WORDS].store(flag.into(), Ordering::Relaxed);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 4]> {
        if words[DATA_WORDS].load(Ordering::Relaxed) != u64::from(flag) {
            return None;
        }
        let first = words[0].load(Ordering::Relaxed) as u8;
        let all_alike =
            words[..DATA_WORDS].iter().all(|word| word.load(Ordering::Relaxed) == u64::from(first));
        assert!(all_alike, "data of two rounds");
        Some([first; 4])
    }
}

/// LL16 of which only the first word's flag is checked: the second word is taken unchecked.
struct OneFlagForBoth;

impl PacketFormat for OneFlagForBoth {
    const WORDS: usize = 2;
    type Payload = [u8; 8];
    const ZEROS: [u8; 8] = [0; 8];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 8], flag: u32) {
        LL16Packet::store(words, payload, flag);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 8]> {
        let [first, second] = [0, 1].map(|i| words[i].load(Ordering::Relaxed));
        let data = |word: u64| (word as u32).to_le_bytes();
        (first >> 32 == u64::from(flag)).then(|| {
            let [[a, b, c, d], [e, f, g, h]] = [data(first), data(second)];
            [a, b, c, d, e, f, g, h]
        })
    }
}

/// A packet buffer of one packet, whose words may be weakened.
struct Buffer {
    words: Vec<Word64>,
    status: Status,
}

impl Buffer {
    fn of<P: PacketFormat>(weakened: bool) -> Arc<Self> {
        let words = (0..P::WORDS).map(|_| Word64::new(weakened)).collect();
        Arc::new(Self { words, status: Status::new() })
    }

    fn put<P: PacketFormat>(&self, round: u32) {
        P::store(&self.words, &payload::<P>(round), round);
    }

    fn take<P: PacketFormat>(&self, round: u32, max_spins: i64) -> Option<P::Payload> {
        let status: StatusWords<'_, Word32> = self.status.words();
        status.poll_until(|| P::load(&self.words, round), max_spins, backoff())
    }
}

/// Makes a payload whose every byte is the number of its round.
fn payload<P: PacketFormat>(round: u32) -> P::Payload {
    let mut payload = P::ZEROS;
    payload.as_mut().fill(round as u8);
    payload
}

/// Sends two rounds through one buffer; the second is put after the answer says that the first was taken.
fn rounds<P: PacketFormat>(weakened: bool) {
    model(Some(2), move || {
        let (there, back) = (Buffer::of::<P>(weakened), Buffer::of::<LL8Packet>(false));
        let putter = thread::spawn({
            let (there, back) = (there.clone(), back.clone());
            move || {
                there.put::<P>(1);
                assert!(back.take::<LL8Packet>(1, -1).is_some());
                there.put::<P>(2);
            }
        });
        for round in [1, 2] {
            let got = there.take::<P>(round, -1).expect("nobody gave up");
            assert!(got.as_ref().iter().all(|byte| *byte == round as u8), "bytes of another round");
            back.put::<LL8Packet>(round);
        }
        putter.join().unwrap();
    });
}

#[test]
fn ll8_packets_are_whole() {
    rounds::<LL8Packet>(false);
}

#[test]
fn ll16_packets_are_whole() {
    rounds::<LL16Packet>(false);
}

#[test]
fn ll128_packets_are_whole() {
    rounds::<LL128Packet>(false);
}

#[test]
#[should_panic(expected = "another round")]
fn a_word_that_does_not_carry_its_flag_may_be_late() {
    rounds::<FlagApart<1>>(false);
}

#[test]
#[should_panic(expected = "another round")]
fn each_half_of_ll16_needs_its_own_flag() {
    rounds::<OneFlagForBoth>(false);
}

#[test]
#[should_panic(expected = "another round")]
fn the_flag_of_ll128_must_be_stored_with_release() {
    rounds::<LL128Packet>(true);
}

#[test]
fn a_wait_for_a_packet_that_timed_out_can_be_repeated() {
    model(None, || {
        let buffer = Buffer::of::<LL16Packet>(false);
        let other = buffer.clone();
        let putter = thread::spawn(move || other.put::<LL16Packet>(1));
        let got = buffer.take::<LL16Packet>(1, 1);
        assert_eq!(
            buffer.status.0[1].load(Ordering::Relaxed),
            u32::from(got.is_none()),
            "a time-out is told"
        );
        putter.join().unwrap();
        assert_eq!(buffer.take::<LL16Packet>(1, 1), Some([1; 8]));
    });
}

#[test]
fn an_abort_ends_a_wait_for_a_packet() {
    model(None, || {
        let buffer = Buffer::of::<LL128Packet>(false);
        let other = buffer.clone();
        let waiter = thread::spawn(move || other.take::<LL128Packet>(1, -1));
        buffer.status.0[0].store(1, Ordering::Release);
        assert!(waiter.join().unwrap().is_none());
        assert_eq!(buffer.status.0[2].load(Ordering::Relaxed), 1, "an abort is told");
    });
}
