//! Tests of a rank whose events come in an order that is rare in a job.

use std::{sync::LazyLock, time::Duration};

use mscclpp_net::wire::Wire;
use mscclpp_test_support::Lines;

use super::*;
use crate::fuzzing::RawRank;
use crate::inbox::{Channel, Stream};
use crate::job::connection::Link;
use crate::protocol::frame::{self, Kind, MAX_PAYLOAD};
use crate::protocol::handshake::JobKey;
use crate::protocol::hello::Purpose;
use crate::protocol::outbox::WINDOW;
use crate::protocol::table::{self, Entry, Place};

fn plan_of_rank_0() -> Plan {
    let plan = Plan::new(0, 4, JobKey::none(), Instant::now(), Duration::from_secs(600));
    Plan { job: Some([5; 16]), by_address: true, ..plan }
}

/// Makes rank 0 of four, while ranks are missing.
pub fn rank_0() -> Job {
    let plan = plan_of_rank_0();
    let formation = Formation::of_root(&plan, "127.0.0.1:1".to_owned(), entry());
    Job::new(plan, formation, Instant::now())
}

/// Adds a link to a rank.
pub fn linked(job: &mut Job, peer: usize) -> ConnectionId {
    let id = job.enter(Connection::new(([127, 0, 0, 1], 9).into(), Phase::Leaving, None));
    if let Some(connection) = job.connections.get_mut(&id) {
        connection.reader.set_limit(MAX_PAYLOAD);
    }
    job.link_up(id, Link::new(peer, false));
    id
}

/// Queues a frame without meaning on a connection.
pub fn say_something(job: &mut Job, id: ConnectionId) {
    let connection = job.connections.get_mut(&id).unwrap();
    connection.outbox.push(frame::encode(Kind::Credit, &0_u32.to_le_bytes()));
    job.queue_write(id);
}

/// Opens a connection to a rank at these addresses.
pub fn look_for(job: &mut Job, rank: usize, candidates: Vec<SocketAddr>, limit: Duration) {
    job.dial(rank, Purpose::Peer, candidates, job.now + limit);
}

pub fn goodbye() -> Vec<u8> {
    frame::encode(Kind::Goodbye, &0_u64.to_le_bytes())
}

/// Takes all actions that the job has now.
fn actions(job: &mut Job) -> Vec<Action> {
    std::iter::from_fn(|| job.next_action()).collect()
}

fn entry() -> Entry {
    Entry { host: [1; 16], domain: [1; 16], place: Place { port: 1, addresses: vec![] } }
}

/// Connects a process to the job. Returns the connection and the challenge on it.
fn come(job: &mut Job) -> (ConnectionId, Vec<u8>) {
    let id = job.on_accepted(Instant::now(), ([127, 0, 0, 1], 9).into(), [7; 32]);
    (id, job.pending(id).to_vec())
}

#[test]
fn no_attempt_is_left_without_a_deadline_when_its_rank_leaves() {
    let mut job = rank_0();
    let link = linked(&mut job, 2);
    let candidates = vec![([127, 0, 0, 1], 10).into()];
    let now = job.now;
    look_for(&mut job, 2, candidates, Duration::from_secs(600));
    // The process at the address accepts, and never says anything.
    let attempt = actions(&mut job).into_iter().find_map(|action| match action {
        Action::Dial { id, .. } => Some(id),
        _ => None,
    });
    job.on_connected(now, attempt.unwrap(), ([127, 0, 0, 1], 11).into(), [8; 32]);
    assert_eq!(job.connections.len(), 2);

    job.on_bytes(now, link, &goodbye());
    assert!(job.dials.is_empty() && job.connections.is_empty());
}

/// The rank may have been slow to answer, and have connected to this rank itself. When it leaves, nobody listens at
/// its address.
#[test]
fn a_rank_that_is_connected_has_not_left_though_its_address_refuses() {
    let mut job = rank_0();
    look_for(&mut job, 2, vec![([127, 0, 0, 1], 10).into()], Duration::from_secs(600));
    let attempt = job.last_id;
    let link = linked(&mut job, 2);
    let later = job.now + Duration::from_secs(5);
    job.on_dial_failed(later, attempt, Failed::Refused);
    job.on_time(later);
    assert!(job.dials.is_empty() && job.is_open(link));
    assert!(!actions(&mut job).iter().any(|action| matches!(action, Action::Gone { .. })));
}

/// The first rank 0 may have bound its port, and be about to listen there.
#[test]
fn a_second_rank_0_asks_again_before_the_port_counts_as_anothers() {
    let place = ([127, 0, 0, 1], 10).into();
    let formation = Formation::of_second_root(place, Error::AddressInUse { address: place });
    let begun = Instant::now();
    let mut job = Job::new(plan_of_rank_0(), formation, begun);
    let mut tried = 0;
    let mut now = begun;
    let failed = loop {
        let actions = actions(&mut job);
        if let Some(error) = actions.iter().find_map(|action| match action {
            Action::Failed(error) => Some(error.clone()),
            _ => None,
        }) {
            break error;
        }
        for action in actions {
            if let Action::Dial { id, .. } = action {
                tried += 1;
                job.on_dial_failed(now, id, Failed::Refused);
            }
        }
        now = job.wake_at().map_or(now, |at| at.max(now));
        job.on_time(now);
    };
    assert!(matches!(failed, Error::AddressInUse { .. }), "{failed}");
    assert!(tried > 2 && now - begun < Duration::from_secs(4), "{tried} attempts in {:?}", now - begun);
}

#[test]
fn a_stranger_is_ended_in_time_though_an_older_one_has_gone() {
    let mut job = rank_0();
    let now = job.now;
    let [older, younger] = [1, 2].map(|seconds| {
        let (id, _) = come(&mut job);
        job.connections.get_mut(&id).unwrap().deadline = Some(now + Duration::from_secs(seconds));
        id
    });
    job.remove(older);
    job.formation.progress_at = None;
    assert_eq!(job.wake_at(), job.connections[&younger].deadline);
}

/// S3: a process that sees the failure can rely on it that the others hear of it.
#[test]
fn a_failure_is_written_to_all_before_callers_see_it() {
    let mut job = rank_0();
    let links = [2, 3].map(|peer| linked(&mut job, peer));
    actions(&mut job);
    let now = job.now;
    job.on_end(now, links[0], "it closed the connection");
    let order = actions(&mut job);
    let at = |wanted: fn(&Action) -> bool| order.iter().position(wanted).unwrap();
    let written = at(|action| matches!(action, Action::Write { .. }));
    assert!(written < at(|action| matches!(action, Action::Failed(Error::PeerLost { rank: 2, .. }))));
    assert_eq!(job.pending(links[1]).get(2), Some(&(Kind::Notice as u8)));
}

#[test]
fn who_is_refused_again_and_again_is_noted_once() {
    let mut job = rank_0();
    for port in 0..100 {
        job.note_refusal(([10, 0, 0, 1], port).into(), "was refused: it has no key".to_owned());
    }
    job.note_refusal(([10, 0, 0, 2], 1).into(), "was refused: it has no key".to_owned());
    job.note_refusal(([10, 0, 0, 1], 1).into(), "was refused: its key is not this job's".to_owned());
    assert_eq!(job.notes.len(), 3);
}

/// Returns the lines that are logged on this thread while `run` runs.
fn logged(run: impl FnOnce()) -> String {
    // With one subscriber, `tracing` asks that of the thread that comes to a line of the log first, which may be another test's.
    static ANOTHER: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
        tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish())
    });
    LazyLock::force(&ANOTHER);
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, run);
    lines.text()
}

#[test]
fn a_refused_key_is_said_at_once_with_who_has_it() {
    let mut job = rank_0();
    job.plan.key = JobKey::of_secret("swordfish");
    let (stranger, challenge) = come(&mut job);
    let proof = RawRank::of_secret("octopus", 4, 3).on_bytes(&challenge).unwrap();
    let text = logged(|| job.on_bytes(Instant::now(), stranger, &proof));
    let process = format!("it says that it is rank 3, process {} on host ", std::process::id());
    let error = text.lines().find(|line| line.contains("ERROR")).unwrap_or_else(|| panic!("{text}"));
    for part in ["127.0.0.1", "its key is not this job's", &process, "MSCCLPP_BOOTSTRAP_SECRET"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(job.notes.len(), 1, "and a time-out says it again");
}

/// Both connections are admitted before either says more. They are of one process here, so the first to say more
/// might be the only one alive.
#[test]
fn a_rank_that_came_twice_is_said_at_once_with_both() {
    let mut job = rank_0();
    let ids: Vec<_> = (0..2)
        .map(|_| {
            let (id, challenge) = come(&mut job);
            let proof = RawRank::without_key(4, 3).on_bytes(&challenge).unwrap();
            job.on_bytes(Instant::now(), id, &proof);
            id
        })
        .collect();
    let join = frame::encode(Kind::Join, &entry().to_bytes());
    job.on_bytes(Instant::now(), ids[1], &join);
    assert!(job.failed.is_none(), "{:?}", job.failed);
    let text = logged(|| job.on_bytes(Instant::now(), ids[0], &join));
    let process = format!("(process {} on host ", std::process::id());
    let error = text.lines().find(|line| line.contains("ERROR")).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(error.matches(&process).count(), 2, "{error}");
    assert!(matches!(job.failed, Some(Error::DuplicateRank { rank: 3, .. })), "{:?}", job.failed);
}

/// The rank was accepted at the last moment, and would take the end of the connection for a loss.
#[test]
fn who_is_let_in_by_a_rank_that_leaves_hears_its_goodbye() {
    let mut job = rank_0();
    let now = job.now;
    job.on_command(now, Command::Close);
    let link = linked(&mut job, 2);
    assert_eq!(job.pending(link), goodbye());
}

/// Lets a rank leave that has queued so many windows of bytes, of which a peer takes one every 1.5 seconds, or none at
/// all. Returns how long the rank stays, and whether it has written everything.
fn leave(windows: usize, are_taken: bool) -> (Duration, bool) {
    let mut job = rank_0();
    let link = linked(&mut job, 2);
    let begun = job.now;
    let (mut now, stream) = (begun, Stream { peer: 2, channel: Channel::Tree, tag: 0 });
    job.on_command(now, Command::Send { stream, bytes: vec![0; windows * WINDOW], written: None });
    job.on_command(now, Command::Close);
    loop {
        while !job.pending(link).is_empty() {
            job.on_written(now, link, job.pending(link).len());
        }
        let all = actions(&mut job).iter().any(|action| matches!(action, Action::FinishWriting { .. }));
        now += Duration::from_millis(1500);
        if all || job.is_finished(now) {
            return (now - begun, all);
        }
        if are_taken {
            job.on_bytes(now, link, &frame::encode(Kind::Credit, &(WINDOW as u32).to_le_bytes()));
        }
    }
}

#[test]
fn who_leaves_stays_as_long_as_its_bytes_are_taken_but_not_for_ever() {
    let (time, all) = leave(10, true);
    assert!(all && time > Duration::from_secs(10), "{time:?}");
    assert_eq!(leave(1000, false), (Duration::from_secs(3), false));
    let (time, all) = leave(1000, true);
    assert!(!all && time < LONGEST_LINGER + Duration::from_secs(3), "{time:?}");
}

/// The parent was slow to answer, so this rank connected to it twice. The parts of the table come on both connections.
#[test]
fn a_table_that_comes_on_two_connections_is_whole() {
    let entries = vec![entry(); 4];
    let plan = Plan { rank: 3, ..plan_of_rank_0() };
    let join = Join { candidates: Vec::new(), listened: false, host: [1; 16], domain: [1; 16] };
    let mut job = Job::new(plan, Formation::of_member(join), Instant::now());
    let links = [(); 2].map(|()| linked(&mut job, 1));
    let now = job.now;
    for (last, part) in table::encode(&entries, 1).chunks(60).enumerate() {
        for link in links {
            job.on_bytes(now, link, &frame::encode(Kind::Table, &[&[last as u8], part].concat()));
        }
    }
    assert!(job.table.is_some() && job.failed.is_none(), "{:?}", job.failed);
}

/// A process whose first connection has broken comes again before rank 0 hears of the break.
#[test]
fn a_process_may_join_again_and_rank_0_waits_for_the_end_of_its_first_connection() {
    let mut job = rank_0();
    let now = job.now;
    let join = |job: &mut Job, rank: u32| {
        let (id, challenge) = come(job);
        job.on_written(now, id, challenge.len());
        job.on_bytes(now, id, &RawRank::without_key(4, rank).on_bytes(&challenge).unwrap());
        id
    };
    let says_where =
        |job: &mut Job, id| job.on_bytes(now, id, &frame::encode(Kind::Join, &entry().to_bytes()));
    for rank in [2, 3] {
        let id = join(&mut job, rank);
        says_where(&mut job, id);
    }
    let [broken, again] = [1, 1].map(|rank| join(&mut job, rank));
    says_where(&mut job, again);
    assert!(job.failed.is_none() && job.table.is_none(), "it may be a second process");
    job.on_end(now, broken, "the connection broke");
    assert!(job.failed.is_none() && job.table.is_some());
}
