//! Tests of memory that its owner frees while a peer writes to it.

use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_gpu::DevicePtr;

use super::*;

/// A member that stalls in the middle of a write.
fn begin(victim: &End, from: &End, region: u64, len: u64, sent: usize) -> Member {
    let mut member = Member::join(victim, from);
    let header = member.outbound.seal(Frame::Write { region, offset: 0, len, checksum: None });
    member.queue.write_all(&header).unwrap();
    member.queue.write_all(&vec![7; sent]).unwrap();
    member
}

/// Checks that the member's connection has failed, at both ends.
fn has_failed(member: &Member, region: u64, back: &Connection) {
    assert_eq!(member.fault(), Fault::Region { region }.to_string());
    until("the way back", || back.check().is_err());
    let error = back.check().unwrap_err().to_string();
    assert!(error.contains("is not registered"), "{error}");
}

#[test]
fn nothing_arrives_in_memory_that_was_dropped_in_the_middle_of_a_write() {
    let (victim, from) = (process(), process());
    let back = victim.connect(&from.endpoint);
    let words: Vec<_> = (0..512).map(|_| AtomicU64::new(0)).collect();
    let start = DevicePtr::from_ptr(words.as_ptr());
    // SAFETY: the words are atomics, and outlive the registration.
    let registered = unsafe { victim.context.register_memory(start, 4096, Transport::ETHERNET) }.unwrap();
    let id = id_of(&registered);
    let mut member = begin(&victim, &from, id, 4096, 1024);
    until("the first bytes", || words[127].load(Ordering::Relaxed) != 0);
    let began = Instant::now();
    drop(registered);
    assert!(began.elapsed() < LIMIT);
    // From here on the memory may belong to somebody else.
    words.iter().for_each(|word| word.store(5, Ordering::Relaxed));
    // This fails if the system knows already that nobody receives the bytes.
    let _ = member.queue.write_all(&[7; 3072]);
    has_failed(&member, id, &back);
    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 5), "bytes came after the withdrawal");
}

#[test]
fn nothing_arrives_in_a_devices_memory_that_was_dropped_in_the_middle_of_a_write() {
    const LEN: u64 = 8 << 20;
    const PART: u64 = 3 << 20;
    let (victim, from) = (process(), process());
    let back = victim.connect(&from.endpoint);
    let buffer = victim.context.gpu(0).unwrap().allocate(LEN).unwrap();
    buffer.fill(0, LEN, 0).unwrap();
    let registered = victim.context.register_buffer(&buffer, Transport::ETHERNET).unwrap();
    let id = id_of(&registered);
    let mut member = begin(&victim, &from, id, LEN, PART as usize);
    let byte = |at: u64| {
        let mut byte = [0];
        buffer.read(at, &mut byte).unwrap();
        byte[0]
    };
    until("the first bytes", || byte(0) == 7);
    drop(registered);
    buffer.fill(0, LEN, 5).unwrap();
    let _ = member.queue.write_all(&vec![7; (LEN - PART) as usize]);
    has_failed(&member, id, &back);
    let mut bytes = vec![0; LEN as usize];
    buffer.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5), "bytes came after the withdrawal");
}

/// An owner that sees the data may drop its memory, even if the receiver has not yet gone on to the next frame.
#[test]
fn dropping_memory_once_its_data_is_there_costs_no_connection() {
    let (a, b) = (process(), process());
    let (ab, ba) = (a.connect(&b.endpoint), b.connect(&a.endpoint));
    let source = Words::new(&a, 512);
    source.fill(77);
    for _ in 0..300 {
        let target = Words::new(&b, 512);
        ab.write(&target.at_peer(), 0, &source.memory, 0, 4096).unwrap();
        until("data", || target.at(511) == 77);
        drop(target);
    }
    delivers(&ab, &a, &b);
    delivers(&ba, &b, &a);
}
