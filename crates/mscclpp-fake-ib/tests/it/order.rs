//! Tests of which operations may overtake which.

use std::sync::atomic::Ordering;

use crate::rig::{End, RELAXED, Request, STRICT, Shape, pair};
use mscclpp_fake_ib::{Config, Fake, Reordering};

/// Counts the rounds of data and token that see the token before all of the data.
fn rounds_that_fail(rules: Reordering, data: u32, token: u32, seed: u64) -> usize {
    let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(seed));
    let shape = |device| Shape { data, token, ..Shape::on(device) };
    let (a, b) = pair(&fake, shape(0), shape(1));
    let mut failed = 0;
    for round in 1..=200 {
        a.fill(0..64, round);
        let chain = [Request::write(&a, &b, 0..64), Request::add(&a, &b, 1).signalled()];
        assert_eq!(a.post(&chain), (0, 2));
        while b.token[0].load(Ordering::Acquire) < round {
            fake.step();
        }
        failed += usize::from(!b.holds(0..64, round));
        fake.settle();
        assert_eq!(a.completions(1).len(), 1);
        assert_eq!(a.token[1].load(Ordering::Relaxed), round - 1, "the atomic returns what was there");
        assert!(b.holds(0..64, round), "everything arrives in the end");
    }
    failed
}

#[test]
fn a_strict_token_passes_nothing() {
    for rules in [Reordering::default(), Reordering::HOST_MEMORY, Reordering::GPU_MEMORY] {
        for data in [RELAXED, STRICT] {
            assert_eq!(rounds_that_fail(rules, data, STRICT, 1), 0, "{rules:?}");
        }
    }
}

#[test]
fn a_relaxed_token_passes_data_in_many_rounds() {
    let failed = rounds_that_fail(Reordering::HOST_MEMORY, RELAXED, RELAXED, 2);
    assert!(failed > 40, "{failed} of 200 rounds");
    // A relaxed token overtakes even strict data, because only the token's own region matters.
    let failed = rounds_that_fail(Reordering::HOST_MEMORY, STRICT, RELAXED, 3);
    assert!(failed > 40, "{failed} of 200 rounds");
    assert_eq!(rounds_that_fail(Reordering::default(), RELAXED, RELAXED, 4), 0, "without reordering");
}

#[test]
fn what_happens_follows_from_the_seed() {
    let failed = |seed| rounds_that_fail(Reordering::HOST_MEMORY, RELAXED, RELAXED, seed);
    assert_eq!(failed(5), failed(5));
    assert!((6..12).any(|seed| failed(seed) != failed(5)), "other seeds give something else");
}

/// Counts the rounds that see the completion of an immediate before all of its data and of the write before it.
fn immediates_that_fail(rules: Reordering, seed: u64) -> usize {
    let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(seed));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    let mut failed = 0;
    for round in 1..=100 {
        a.fill(0..128, round);
        assert_eq!(b.receive(1), 0);
        let chain =
            [Request::write(&a, &b, 0..64), Request::write_imm(&a, &b, 64..128, round as u32).signalled()];
        assert_eq!(a.post(&chain), (0, 2));
        let completion = b.completions(1)[0];
        // SAFETY: a receive with immediate data has some.
        assert_eq!(u32::from_be(unsafe { completion.__bindgen_anon_1.imm_data }), round as u32);
        assert_eq!(completion.byte_len, 512);
        if rules.completions && round % 2 == 0 {
            fake.flush_memory();
            assert!(b.holds(0..128, round), "flushing makes everything visible");
        }
        failed += usize::from(!b.holds(0..128, round));
        a.completions(1);
        fake.settle();
    }
    failed
}

#[test]
fn the_completion_of_an_immediate_comes_after_data_in_host_memory_only() {
    assert_eq!(immediates_that_fail(Reordering::default(), 1), 0);
    assert_eq!(immediates_that_fail(Reordering::HOST_MEMORY, 2), 0);
    let failed = immediates_that_fail(Reordering::GPU_MEMORY, 3);
    assert!(failed > 10, "{failed} of the 50 rounds that do not flush");
}

#[test]
fn a_relaxed_write_passes_no_atomic_that_came_before() {
    let rules = Reordering::HOST_MEMORY;
    let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(7));
    let shape = |device| Shape { token: RELAXED, ..Shape::on(device) };
    let (a, b) = pair(&fake, shape(0), shape(1));
    for round in 1..=200 {
        a.fill(0..1, round);
        assert_eq!(a.post(&[Request::add(&a, &b, 1), Request::write(&a, &b, 0..1).signalled()]).0, 0);
        while !b.holds(0..1, round) {
            fake.step();
        }
        assert_eq!(b.token[0].load(Ordering::Relaxed), round);
        fake.settle();
        a.completions(1);
    }
}

/// A strict write waits for everything before it, but relaxed writes behind it need not wait for it.
#[test]
fn a_relaxed_write_passes_a_strict_one_that_came_before() {
    let rules = Reordering::HOST_MEMORY;
    let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(11));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    let mut passed = 0;
    for round in 1..=100 {
        a.fill(0..65, round);
        let mut strict = Request::write(&a, &b, 0..1);
        strict.wr.wr.rdma.remote_addr = b.token.as_ptr() as u64;
        // SAFETY: the region lives as long as its end.
        strict.wr.wr.rdma.rkey = unsafe { (*b.token_mr).rkey };
        let chain = [Request::write(&a, &b, 64..65), strict, Request::write(&a, &b, 0..1).signalled()];
        assert_eq!(a.post(&chain), (0, 3));
        loop {
            fake.step();
            let (token, later) = (b.token[0].load(Ordering::Acquire) == round, b.holds(0..1, round));
            assert!(!token || b.holds(64..65, round), "the strict write passed the one before it");
            if token || later {
                passed += usize::from(later && !token);
                break;
            }
        }
        fake.settle();
        a.completions(1);
    }
    assert!(passed > 10, "{passed} of 100");
}

#[test]
fn a_relaxed_write_becomes_visible_in_pieces_and_a_strict_one_does_not() {
    let torn = |data: u32| {
        let rules = Reordering::HOST_MEMORY;
        let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(8));
        let shape = |device| Shape { data, ..Shape::on(device) };
        let (a, b) = pair(&fake, shape(0), shape(1));
        let mut torn = 0;
        for round in 1..=50 {
            a.fill(0..512, round);
            assert_eq!(a.post(&[Request::write(&a, &b, 0..512).signalled()]).0, 0);
            let mut seen = Vec::new();
            while a.poll().is_empty() {
                let landed =
                    b.data[..512].iter().filter(|word| word.load(Ordering::Relaxed) == round).count();
                seen.push(landed);
            }
            assert!(b.holds(0..512, round), "what is acknowledged late is visible");
            torn += usize::from(seen.iter().any(|&landed| landed > 0 && landed < 512));
        }
        (torn, fake.counters().overtakings)
    };
    let (relaxed, overtakings) = torn(RELAXED);
    assert!(relaxed > 25 && overtakings > 100, "{relaxed} torn, {overtakings} overtakings");
    assert_eq!(torn(STRICT), (0, 0));
}

#[test]
fn an_early_acknowledgement_says_nothing_of_visibility() {
    let rules = Reordering::HOST_MEMORY.acknowledged_early();
    let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(9));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    let mut invisible = 0;
    for round in 1..=50 {
        a.fill(0..64, round);
        assert_eq!(a.post(&[Request::write(&a, &b, 0..64).signalled()]).0, 0);
        a.completions(1);
        invisible += usize::from(!b.holds(0..64, round));
        fake.settle();
        assert!(b.holds(0..64, round));
    }
    assert!(invisible > 10, "{invisible} of 50");
}

#[test]
fn requests_complete_in_the_order_of_posting_whatever_passes_what() {
    let rules = Reordering::GPU_MEMORY.acknowledged_early();
    let fake = Fake::new(Config::new(2).with(|device| device.reordering = rules).reproducible(10));
    let shape = |device| Shape { token: RELAXED, ..Shape::on(device) };
    let (a, b) = pair(&fake, shape(0), shape(1));
    let order = |end: &End, count| end.completions(count).iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    for _ in 0..20 {
        assert_eq!(b.receive(4), 0);
        let request = |id: u64| match id % 3 {
            0 => Request::write(&a, &b, 0..16),
            1 => Request::add(&a, &b, 1),
            _ => Request::write_imm(&a, &b, 0..16, id as u32),
        };
        let chain: Vec<_> = (0..12).map(|id| request(id).id(id).signalled()).collect();
        assert_eq!(a.post(&chain).0, 0);
        assert_eq!(order(&a, 12), (0..12).collect::<Vec<_>>());
        assert_eq!(order(&b, 4), [0, 1, 2, 3]);
        fake.settle();
    }
}
