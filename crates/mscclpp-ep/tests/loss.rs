//! Experts whose ranks are processes, of which one is killed: the others go on without it.

use std::{
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Trial};
use mscclpp::{TcpBootstrap, UniqueId, prelude::*};
use mscclpp_ep::{Combine, Dispatch, Error, Experts, Layout, NumberType, Receive};
use mscclpp_test_support::{
    LIMIT, Lateness, Random,
    child::{await_end, say},
    job::{Children, Role, run_if_child},
};

const N: usize = 3;
const VICTIM: usize = 1;
const EXPERTS: usize = 6;
const TOP_K: usize = 3;
const HIDDEN: usize = 40;
const CAPACITY: usize = 10;
/// The round in which the rank kills itself, and how many there are.
const KILLED_IN: usize = 20;
const ROUNDS: usize = 60;
/// How soon the others know of a rank that was killed.
const PROMISED: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    if let Some(code) = run_if_child(child) {
        return code;
    }
    let trials = ["whole", "halves", "given-up", "silent"].map(|role| {
        Trial::test(format!("ranks_go_on_without_one_that_is_lost_{role}"), move || {
            let mut children = Children::form(role, N);
            let lateness = Lateness::watch();
            let others: Vec<usize> = (0..N).filter(|rank| *rank != VICTIM).collect();
            let all: Vec<String> = others.iter().map(|rank| children.next_line(*rank)).collect();
            let allowed = lateness.allows(PROMISED);
            for (rank, said) in others.into_iter().zip(all) {
                println!("rank {rank}: {said}");
                let Some(millis) = said.strip_prefix("went on, longest wait in ms: ") else {
                    return Err(said.into());
                };
                // A rank that is silent counts as lost when it has been waited for.
                if role != "silent" && Duration::from_millis(millis.parse()?) > allowed {
                    return Err(format!("rank {rank}: {said}, which is more than {allowed:?}").into());
                }
                children.expect_success(rank);
            }
            Ok(())
        })
    });
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn child(role: &Role) {
    mscclpp::log::init().expect("logging");
    say(&match rounds(role) {
        Ok(longest) => format!("went on, longest wait in ms: {}", longest.as_millis()),
        Err(error) => format!("failed: {error}"),
    });
}

/// Kills this process in a moment.
fn end_soon() {
    let moment = Duration::from_micros(Random::new().of(0..=5000));
    thread::spawn(move || {
        thread::sleep(moment);
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
    });
}

/// Returns how long the longest round took.
fn rounds(role: &Role) -> Result<Duration, Error> {
    let platform = Platform::detect_or_sim()?;
    let id = role.unique_id(|| TcpBootstrap::create_unique_id().map(|id| id.to_hex()))?;
    let bootstrap = TcpBootstrap::new(role.rank, role.n_ranks, id.parse::<UniqueId>()?, LIMIT)?;
    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
    let gpu = comm.context().gpu(role.rank % platform.device_count()?)?;
    let experts = Experts::builder(&comm, &gpu)
        .experts(EXPERTS)
        .top_k(TOP_K)
        .hidden(HIDDEN)
        .number_type(NumberType::F32)
        .capacity(CAPACITY)
        .survive_loss(if role.name == "silent" { Duration::from_secs(5) } else { LIMIT })
        .timeout(LIMIT)
        .connect()?;
    let stream = gpu.stream()?;
    let local = experts.n_local();
    let rows = gpu.allocate((local * N * CAPACITY * HIDDEN * 4) as u64)?;
    let sums = gpu.allocate((CAPACITY * HIDDEN * 4) as u64)?;
    let mut random = Random::with_seed(role.rank as u64);
    let (mut was_lost, mut dropped, mut longest) = (false, 0, Duration::ZERO);
    for round in 0..ROUNDS {
        if role.rank == VICTIM && round == KILLED_IN {
            match role.name.as_str() {
                "given-up" => return Ok(longest),
                "silent" => await_end(),
                _ => end_soon(),
            }
        }
        let count = random.below(CAPACITY + 1);
        let ids: Vec<i32> = (0..count * TOP_K).map(|_| random.below(EXPERTS + 1) as i32 - 1).collect();
        let weights: Vec<f32> = ids.iter().map(|_| random.below(9) as f32 - 4.0).collect();
        let numbers: Vec<f32> = (0..count * HIDDEN).map(|_| random.below(100) as f32).collect();
        let given = (gpu.allocate(4096)?, gpu.allocate(4096)?, gpu.allocate(4096)?);
        given.0.write_params(0, &ids)?;
        given.1.write_params(0, &weights)?;
        given.2.write_params(0, &numbers)?;
        if role.name == "given-up" && round == KILLED_IN {
            experts.lose(&[VICTIM], &stream)?;
        }
        let goes_on = |done: Result<(), Error>| match done {
            Err(Error::Lost { ranks }) => {
                assert_eq!(ranks, [VICTIM], "round {round}");
                Ok(true)
            }
            done => done.map(|()| false),
        };
        let receive = |half: Receive| {
            thread::sleep(Duration::from_micros(200));
            half.receive(&stream)
        };
        let begun = Instant::now();
        let call = Dispatch::new(count, &given.0, &given.2).weights(&given.1).into(Layout::Expert, &rows);
        let routed = if role.name == "halves" {
            let (routed, half) = experts.dispatch_send(&call, &stream)?;
            receive(half)?;
            routed
        } else {
            experts.dispatch(&call, &stream)?
        };
        let lost_in_dispatch = goes_on(experts.synchronize(&stream))?;
        // The experts give back what they got.
        let combine = Combine::new(&routed, &rows, &sums);
        if role.name == "halves" {
            receive(experts.combine_send(&combine, &stream)?)?;
        } else {
            experts.combine(&combine, &stream)?;
        }
        let lost_now = goes_on(experts.synchronize(&stream))? || lost_in_dispatch;
        longest = longest.max(begun.elapsed());
        was_lost |= !experts.lost().is_empty();
        if lost_now {
            continue;
        }
        let mut got = vec![0f32; count * HIDDEN];
        sums.read_params(0, &mut got)?;
        let is_there = |id: i32| id >= 0 && !(was_lost && id as usize * N / EXPERTS == VICTIM);
        for token in 0..count {
            let choices = token * TOP_K..(token + 1) * TOP_K;
            let weight: f32 = choices.filter(|i| is_there(ids[*i])).map(|i| weights[i]).sum();
            let (expected, row) = (token * HIDDEN..(token + 1) * HIDDEN, &got[token * HIDDEN..][..HIDDEN]);
            for (number, got) in numbers[expected].iter().zip(row) {
                assert_eq!(weight * number, *got, "rank {}, round {round}, token {token}", role.rank);
            }
        }
        if was_lost {
            dropped += ids.iter().filter(|id| **id >= 0 && !is_there(**id)).count() as u64;
        }
    }
    assert_eq!(experts.lost(), [VICTIM]);
    assert!(dropped > 0 && experts.lost_choices()? >= dropped, "{dropped} of {}", experts.lost_choices()?);
    Ok(longest)
}
