//! Tests that play valid and invalid frames to a receiving end in memory.

use fastrand::Rng;
use mscclpp_net::links::header::{BadHeader, Fields, HEADER, Header, Inbound, Outbound};

use crate::frame::{Fault, Frame};

use super::{
    played::{LEN, SEAL, Stage},
    receiver::{CutAt, End},
};

fn outbound() -> Outbound {
    Outbound::new(&SEAL)
}

fn fault(end: &End) -> Fault {
    match end {
        End::Fault(fault) => *fault,
        other => panic!("{other:?}"),
    }
}

fn write(region: u64, offset: u64, bytes: &[u8], checksum: bool) -> Frame {
    let checksum = checksum.then(|| crc32fast::hash(bytes));
    Frame::Write { region, offset, len: bytes.len() as u64, checksum }
}

#[test]
fn operations_are_exact_however_they_are_cut() {
    let stage = Stage::new();
    let id = stage.region.id();
    let mut random = Rng::with_seed(1);
    for seed in 0..30 {
        let (outbound, mut expected) = (outbound(), stage.bytes());
        let (mut said, mut tickets) = (Vec::new(), Vec::new());
        for ticket in 0..50 {
            let (offset, len) = (random.u64(..LEN), random.u64(..LEN));
            let bytes: Vec<u8> = (0..len.min(LEN - offset)).map(|_| random.u8(..)).collect();
            said.extend(outbound.seal(write(id, offset, &bytes, ticket % 2 == 0)));
            said.extend(&bytes);
            expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            let (offset, value) = (8 * random.u64(..LEN / 8), random.u64(..));
            said.extend(outbound.seal(Frame::Update { region: id, offset, value }));
            expected[offset as usize..][..8].copy_from_slice(&value.to_ne_bytes());
            if random.u64(..3) == 0 {
                said.extend(outbound.seal(Frame::Flush { ticket }));
                tickets.push(ticket);
            }
        }
        said.extend(outbound.seal(Frame::Goodbye));
        let (end, answers) = stage.play(&said, seed);
        assert!(matches!(end, End::Goodbye), "{end:?}");
        assert_eq!(stage.bytes(), expected);
        let mut inbound = Inbound::new(&SEAL);
        let (answers, rest) = answers.as_chunks::<HEADER>();
        let answered: Vec<Frame> =
            answers.iter().map(|answer| Frame::open(&mut inbound, answer).unwrap()).collect();
        assert!(rest.is_empty());
        let due: Vec<Frame> = tickets.into_iter().map(|ticket| Frame::Complete { ticket }).collect();
        assert_eq!(answered, due, "each flush is answered, in order");
    }
}

#[test]
fn what_is_not_registered_is_not_written() {
    let stage = Stage::new();
    let id = stage.region.id();
    let refused = |frame: Frame, due: Fault| {
        let said = [&outbound().seal(frame)[..], &[7; 64]].concat();
        assert_eq!(fault(&stage.play(&said, 1).0), due, "{frame:?}");
        assert!(stage.bytes().iter().all(|byte| *byte == 0), "{frame:?} wrote something");
    };
    let unknown = id ^ 1;
    refused(write(unknown, 0, &[7; 64], false), Fault::Region { region: unknown });
    refused(Frame::Update { region: unknown, offset: 0, value: 1 }, Fault::Region { region: unknown });
    for (offset, len) in [
        (0, LEN + 1),
        (LEN, 1),
        (LEN - 1, 2),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
        (u64::MAX / 2 + 1, u64::MAX / 2 + 1),
        (0u64.wrapping_sub(LEN), LEN),
    ] {
        let frame = Frame::Write { region: id, offset, len, checksum: None };
        refused(frame, Fault::Bounds { region: id, offset, len });
    }
    for offset in [LEN - 7, LEN, u64::MAX - 7, u64::MAX] {
        refused(Frame::Update { region: id, offset, value: 1 }, Fault::Bounds { region: id, offset, len: 8 });
    }
    for offset in [1, 4, 7] {
        refused(Frame::Update { region: id, offset, value: 1 }, Fault::Unaligned { region: id, offset });
    }
    // Kind 4 is an answer; kinds 6 to 10 are those of links.
    for kind in [4].into_iter().chain(6..=10) {
        let header = outbound().seal(Fields { kind, ..Fields::default() });
        assert_eq!(fault(&stage.play(&header, 1).0), Fault::Header(BadHeader::Kind { kind }));
    }
}

#[test]
fn a_withdrawn_region_is_not_written_any_more() {
    let stage = Stage::new();
    let frame = write(stage.region.id(), 0, &[7; 64], false);
    let said = [&outbound().seal(frame)[..], &[7; 64]].concat();
    assert!(matches!(stage.play(&said, 1).0, End::Cut(CutAt::BetweenFrames)));
    stage.regions.withdraw(stage.region.id());
    let before = stage.bytes();
    let said = [&outbound().seal(frame)[..], &[8; 64]].concat();
    assert_eq!(fault(&stage.play(&said, 1).0), Fault::Region { region: stage.region.id() });
    assert_eq!(stage.bytes(), before);
}

#[test]
fn changed_data_does_not_pass_a_checksum() {
    let stage = Stage::new();
    let id = stage.region.id();
    let outbound = outbound();
    let mut said = outbound.seal(write(id, 16, &[7; 64], true)).to_vec();
    said.extend([7; 63]);
    said.push(8);
    // The update behind the changed data must not become visible.
    said.extend(outbound.seal(Frame::Update { region: id, offset: 0, value: u64::MAX }));
    assert_eq!(fault(&stage.play(&said, 1).0), Fault::Checksum { region: id, offset: 16 });
    assert_eq!(stage.bytes()[..8], [0; 8]);
}

#[test]
fn repeated_and_reordered_frames_end_it() {
    let stage = Stage::new();
    let outbound = outbound();
    let update = |value| outbound.seal(Frame::Update { region: stage.region.id(), offset: 0, value });
    let [first, second] = [update(1), update(2)];
    let play = |frames: &[Header]| fault(&stage.play(&frames.concat(), 1).0);
    assert_eq!(play(&[second]), BadHeader::Sequence { due: 0, came: 1 }.into());
    assert_eq!(stage.bytes()[..8], [0; 8]);
    assert_eq!(play(&[first, first, second]), BadHeader::Sequence { due: 1, came: 0 }.into());
    assert_eq!(stage.bytes()[..8], 1u64.to_ne_bytes(), "what came before was in order");
}

/// Frames have a valid seal and random fields.
#[test]
fn a_hundred_thousand_frames_of_a_hostile_member() {
    let stage = Stage::new();
    let id = stage.region.id();
    let mut random = Rng::with_seed(7);
    let mut number = |near: u64| match random.u64(..6) {
        0 => random.u64(..),
        1 => u64::MAX - random.u64(..16),
        2 => near.wrapping_add(random.u64(..16)).wrapping_sub(8),
        3 => 8 * random.u64(..LEN / 8),
        _ => random.u64(..near + 1),
    };
    let mut frames = 0;
    while frames < 100_000 {
        let outbound = outbound();
        let mut said = Vec::new();
        for _ in 0..1 + number(12) % 12 {
            let region = if number(9) % 8 == 0 { number(id) } else { id };
            let (offset, len) = (number(LEN), number(300));
            let frame = match number(9) % 8 {
                0 => Frame::Flush { ticket: number(1) },
                1 => Frame::Complete { ticket: number(1) },
                2..5 => Frame::Update { region, offset, value: number(1) },
                _ => Frame::Write { region, offset, len, checksum: None },
            };
            said.extend(outbound.seal(frame));
            if let Frame::Write { len: 0..4096, .. } = frame {
                said.extend(vec![0x5a; len as usize]);
            }
            frames += 1;
        }
        stage.play(&said, frames);
        stage.bytes();
    }
}

/// Frames were not sealed, or were changed afterwards.
#[test]
fn a_hundred_thousand_frames_of_a_stranger() {
    let stage = Stage::new();
    let mut random = Rng::with_seed(8);
    for round in 0..100_000 {
        let frame = write(stage.region.id(), 0, &[7; 16], false);
        let mut said = [&outbound().seal(frame)[..], &[7; 16]].concat();
        if round % 2 == 0 {
            let bit = random.usize(..8 * HEADER);
            said[bit / 8] ^= 1 << (bit % 8);
        } else {
            said[..HEADER].fill_with(|| random.u8(..));
        }
        assert_eq!(fault(&stage.play(&said, round).0), Fault::Header(BadHeader::Seal));
    }
    assert!(stage.bytes().iter().all(|byte| *byte == 0));
}
