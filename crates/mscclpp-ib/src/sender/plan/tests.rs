use std::collections::VecDeque;

use super::*;

const WORD: u64 = 8;
const DATA: RouteId = RouteId::new(0);
const TOKEN: RouteId = RouteId::new(1);
const OTHER_TOKEN: RouteId = RouteId::new(2);
const ENOUGH: usize = 1 << 20;

fn routes() -> Routes<Route> {
    let region = |id| RegionBlob { id, address: id << 40, len: u64::MAX, data_key: 100, update_key: 200 };
    let from = Origin { address: 1 << 20, key: 300, is_host_memory: true };
    let mut routes = Routes::default();
    for (route, id, from) in [(DATA, 1, Some(from)), (TOKEN, 2, None), (OTHER_TOKEN, 3, None)] {
        routes.insert(route, Route { to: region(id), from });
    }
    routes
}

fn how(immediates: bool) -> How {
    How { immediates, quarter: 16, inline: 64 }
}

fn write(offset: u64, len: u64) -> Operation {
    Operation::Write { route: DATA, dst_offset: offset, src_offset: offset, len }
}

fn signal(route: RouteId, value: u64) -> Operation {
    Operation::Update { route, offset: WORD, value, previous: Some(value - 1) }
}

/// Plans a batch with enough room. Returns the requests, each with whether it asks for a completion.
fn planned(how: How, batch: &[Operation]) -> Vec<Item> {
    let mut plan = Plan::new(how);
    plan.add(batch, &routes(), 0, ENOUGH, ENOUGH as u64, true);
    let items: Vec<_> = plan.items.iter().copied().collect();
    assert_eq!(plan.taken(items.len()), batch.len(), "all is taken");
    items
}

/// Returns where each write goes, how long it is, and its number.
fn writes(items: &[Item]) -> Vec<(u64, u32, Option<u32>)> {
    let of = |item: &Item| match item.request {
        Request::Write { to, len, immediate, .. } => Some((to - (1 << 40), len, immediate)),
        _ => None,
    };
    items.iter().filter_map(of).collect()
}

#[test]
fn long_writes_are_split() {
    assert_eq!(writes(&planned(how(false), &[write(5, 0)])), [], "of nothing, nothing is sent");
    assert_eq!(writes(&planned(how(false), &[write(5, 1)])), [(5, 1, None)]);
    assert_eq!(writes(&planned(how(false), &[write(0, LARGEST)])), [(0, 1 << 30, None)]);
    let one_more = planned(how(false), &[write(7, LARGEST + 1)]);
    assert_eq!(writes(&one_more), [(7, 1 << 30, None), (7 + LARGEST, 1, None)]);
    let huge = 5 * LARGEST + 4095;
    let pieces = planned(how(false), &[write(3, huge)]);
    let mut at = 3;
    for item in &pieces {
        let Request::Write { to, from, len, .. } = item.request else { panic!("{item:?}") };
        assert_eq!((to - (1 << 40), from - (1 << 20)), (at, at));
        at += u64::from(len);
    }
    assert_eq!((pieces.len(), at), (6, 3 + huge));
}

#[test]
fn what_is_short_travels_inside_requests_if_the_host_can_read_it() {
    let inline = |len, is_host_memory| {
        let mut routes = routes();
        let from = routes.get_mut(DATA).and_then(|route| route.from.as_mut()).expect("a source");
        from.is_host_memory = is_host_memory;
        let mut plan = Plan::new(how(false));
        plan.add(&[write(0, len)], &routes, 0, ENOUGH, 0, true);
        matches!(plan.items[0].request, Request::Write { inline: true, .. })
    };
    assert!(inline(1, true) && inline(64, true));
    assert!(!inline(65, true) && !inline(8, false));
}

#[test]
fn with_atomics_a_signal_adds_and_is_signalled() {
    let items = planned(how(false), &[write(0, 100), signal(TOKEN, 7)]);
    let add = Request::Add { to: (2 << 40) + WORD, key: 200, by: 1 };
    assert_eq!((items.len(), items[0].signalled), (2, false));
    assert_eq!((items[1].request, items[1].signalled), (add, true));
}

#[test]
fn without_a_previous_value_a_word_is_stored() {
    for immediates in [false, true] {
        let update = Operation::Update { route: TOKEN, offset: WORD, value: 7, previous: None };
        let items = planned(how(immediates), &[update]);
        assert_eq!(items[0].request, Request::Store { to: (2 << 40) + WORD, key: 200, value: 7 });
    }
}

#[test]
fn without_atomics_the_number_travels_with_the_last_data() {
    let batch = [
        signal(TOKEN, 1),
        write(0, 100),
        signal(TOKEN, 2),
        write(100, LARGEST + 1),
        signal(TOKEN, 3),
        write(9, 0),
        signal(TOKEN, 4),
    ];
    let items = planned(how(true), &batch);
    let Request::Message(first) = items[0].request else { panic!("the token is named first: {items:?}") };
    assert_eq!(first, Select { region: 2, offset: WORD, value: 1 }.encode());
    let expected = [(0, 100, Some(2)), (100, 1 << 30, None), (100 + LARGEST, 1, Some(3))];
    assert_eq!(writes(&items[1..4]), expected);
    assert!(matches!(items[4].request, Request::Write { len: 0, immediate: Some(4), .. }), "{items:?}");
    let signalled: Vec<_> = items.iter().map(|item| item.signalled).collect();
    assert_eq!(signalled, [true, true, false, true, true]);
}

#[test]
fn another_token_and_a_leap_are_named_anew() {
    let leap = 3 + (1 << 32);
    let far = Operation::Update { route: TOKEN, offset: WORD, value: leap, previous: Some(2) };
    let most = Operation::Update {
        route: TOKEN,
        offset: WORD,
        value: leap + u64::from(u32::MAX),
        previous: Some(leap),
    };
    let stored = Operation::Update { route: TOKEN, offset: WORD, value: 1 << 40, previous: None };
    let batch = [
        signal(TOKEN, 1),
        signal(TOKEN, 2),
        signal(OTHER_TOKEN, 1),
        signal(TOKEN, 2),
        far,
        most,
        stored,
        signal(TOKEN, (1 << 40) + 1),
    ];
    let items = planned(how(true), &batch);
    let named: Vec<_> = items.iter().map(|item| matches!(item.request, Request::Message(_))).collect();
    assert_eq!(named, [true, false, true, true, true, false, false, true], "{items:?}");
}

#[test]
fn a_quarter_of_the_queue_is_signalled_at_the_latest() {
    let batch: Vec<_> = (0..64).map(|i| write(i, 1)).collect();
    let signalled = planned(how(false), &batch).iter().filter(|item| item.signalled).count();
    assert_eq!(signalled, 4);
    let all = planned(How { quarter: 1, ..how(false) }, &batch);
    assert!(all.iter().all(|item| item.signalled), "in a queue of four each is signalled");
}

#[test]
fn a_flush_waits_for_what_came_before() {
    let mut plan = Plan::new(how(false));
    let batch = [Operation::Flush { ticket: 1 }, write(0, 1), write(1, 1), Operation::Flush { ticket: 2 }];
    plan.add(&batch, &routes(), 10, ENOUGH, 0, true);
    let signalled: Vec<_> = plan.items.iter().map(|item| item.signalled).collect();
    assert_eq!((signalled, plan.tickets.clone()), (vec![false, true], VecDeque::from([(1, 10), (2, 12)])));
    assert_eq!(plan.taken(2), 4);
    plan.items.clear();
    // The requests before asked for no completion, so an empty request behind them does.
    plan.add(&[write(2, 1)], &routes(), 12, ENOUGH, 0, false);
    plan.items.clear();
    assert_eq!(plan.taken(1), 1);
    plan.add(&[Operation::Flush { ticket: 3 }], &routes(), 13, ENOUGH, 0, false);
    assert_eq!((plan.items[0].request, plan.items[0].signalled), (Request::Nothing, true));
    assert_eq!(plan.tickets.back(), Some(&(3, 14)));
}

#[test]
fn what_does_not_fit_leaves_no_trace() {
    let batch = [write(0, 1), signal(TOKEN, 1), Operation::Flush { ticket: 1 }];
    let mut plan = Plan::new(how(true));
    // There is room for the write alone.
    plan.add(&batch, &routes(), 0, 1, 100, true);
    assert_eq!((plan.items.len(), plan.state.messages, plan.tickets.len()), (1, 0, 0));
    plan.items.clear();
    assert_eq!(plan.taken(1), 1);
    // There is room, but the peer has no receive.
    plan.add(&batch[1..], &routes(), 1, 100, 0, false);
    assert_eq!((plan.items.len(), plan.state.messages), (0, 0));
    assert_eq!(plan.taken(0), 0);
    // Everything is planned, and nothing is posted.
    plan.add(&batch[1..], &routes(), 1, 100, 100, false);
    assert_eq!((plan.items.len(), plan.state.messages, plan.tickets.len()), (1, 1, 1));
    assert_eq!(plan.taken(0), 0);
    assert_eq!((plan.items.len(), plan.state.messages, plan.tickets.len()), (0, 0, 0));
    // The token still has to be selected.
    plan.add(&batch[1..], &routes(), 1, 100, 100, false);
    assert!(matches!(plan.items[0].request, Request::Message(_)));
}

#[test]
fn of_an_operation_that_was_begun_the_rest_stays() {
    let batch = [write(0, 3 * LARGEST), signal(TOKEN, 1), write(8, 1)];
    let mut plan = Plan::new(how(false));
    // The queue of two places is empty: the first operation is begun though it is longer.
    plan.add(&batch, &routes(), 0, 2, 0, true);
    assert_eq!(plan.items.len(), 3);
    plan.items.drain(..2);
    assert_eq!(plan.taken(2), 1);
    assert_eq!(writes(plan.items.make_contiguous()), [(2 * LARGEST, 1 << 30, None)]);
    // With something under way it is not begun.
    let mut plan = Plan::new(how(false));
    plan.add(&batch, &routes(), 0, 2, 0, false);
    assert_eq!((plan.items.len(), plan.taken(0)), (0, 0));
    // Everything was planned, and the adapter stopped in the middle of the first operation.
    plan.add(&batch, &routes(), 0, ENOUGH, 0, false);
    assert_eq!(plan.items.len(), 5);
    plan.items.drain(..1);
    assert_eq!((plan.taken(1), plan.items.len()), (1, 2));
}

/// Posts random operations in portions to an adapter that takes any number of requests. All must be posted, in order
/// and once, as if there had been room for all, and each flush must have a completion to wait for.
#[test]
fn in_whatever_portions_it_is_posted_it_comes_to_the_same() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut values, mut tickets) = ([0, 0], 0);
        let batch: Vec<_> = (0..random.u64(1..60))
            .map(|i| match random.u8(..8) {
                0..3 => write(i, random.u64(..3)),
                3 => write(i, random.u64(..4) * LARGEST + random.u64(..2)),
                4..6 => {
                    values[0] += 1;
                    signal(TOKEN, values[0])
                }
                6 => {
                    values[1] += 1;
                    signal(OTHER_TOKEN, values[1])
                }
                _ => {
                    tickets += 1;
                    Operation::Flush { ticket: tickets }
                }
            })
            .collect();
        let how = How { quarter: random.u32(1..6), ..how(random.bool()) };
        let mut expected: Vec<_> = planned(how, &batch).iter().map(|item| item.request).collect();
        let (posted, tickets) = post_in_portions(how, &batch, &mut random);
        for (ticket, until) in tickets {
            let is_signalled = until == 0 || posted[until as usize - 1].signalled;
            assert!(is_signalled, "seed {seed}: nothing tells that ticket {ticket} is reached");
        }
        let telling = posted.chunks(how.quarter as usize).filter(|chunk| chunk.len() == how.quarter as usize);
        for chunk in telling {
            assert!(
                chunk.iter().any(|item| item.signalled),
                "seed {seed}: a quarter of the queue tells nothing"
            );
        }
        let mut posted: Vec<_> = posted.iter().map(|item| item.request).collect();
        // The empty requests that only report completions depend on the portions.
        posted.retain(|request| *request != Request::Nothing);
        expected.retain(|request| *request != Request::Nothing);
        assert_eq!(posted, expected, "seed {seed}");
    }
}

/// Posts a batch as the sender does, with an adapter that takes a random number of requests.
fn post_in_portions(
    how: How,
    batch: &[Operation],
    random: &mut fastrand::Rng,
) -> (Vec<Item>, Vec<(u64, u64)>) {
    let (mut plan, mut posted, mut given) = (Plan::new(how), Vec::new(), 0);
    let post = |plan: &mut Plan, posted: &mut Vec<Item>, random: &mut fastrand::Rng| {
        let count = random.usize(..=plan.items.len());
        posted.extend(plan.items.drain(..count));
        count
    };
    while given < batch.len() || !plan.items.is_empty() {
        post(&mut plan, &mut posted, random);
        if plan.items.is_empty() {
            let room = random.usize(..20);
            let messages = plan.state.messages + random.u64(..4);
            let number = posted.len() as u64;
            plan.add(&batch[given..], &routes(), number, room, messages, random.bool());
            let count = post(&mut plan, &mut posted, random);
            given += plan.taken(count);
        }
    }
    (posted, plan.tickets.into())
}
