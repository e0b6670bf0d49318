//! Copies of the kernels, each with one change that makes them wrong: the race detector of simulated devices finds it, or the
//! data differ from the oracle's, or a call does not end. Each takes seconds to compile, so `ci/run.sh races_all` runs
//! them; every run checks that the headers have the texts that they change.

#[path = "it/checked.rs"]
mod checked;
#[path = "it/oracle.rs"]
mod oracle;
#[path = "it/rounds.rs"]
mod rounds;
#[path = "it/support.rs"]
mod support;

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    process::{self, Command, ExitCode},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp::{ErrorKind, KernelSource};
use mscclpp_ep::{Dispatch, Experts, NumberType};
use mscclpp_kernels::{EXPERTS, EXPERTS_BF16, EXPERTS_BY_PACKETS, EXPERTS_F16, EXPERTS_F32};
use mscclpp_test_support::{LIMIT as TEST_LIMIT, Random};

use crate::{
    checked::Options,
    rounds::{any, without_the_host},
};

/// The most runs in which a mutant may stay unnoticed.
const RUNS: usize = 1000;

/// The variable with the name of the mutant that a process runs.
const ALONE: &str = "MSCCLPP_TEST_MUTANT";

/// How long the calls of a mutant may take, which may wait for ever.
const LIMIT: Duration = Duration::from_secs(20);

struct Mutant {
    name: &'static str,
    /// A text that the headers have once, and its replacement.
    change: [&'static str; 2],
}

#[rustfmt::skip]
const MUTANTS: &[Mutant] = &[
    Mutant { name: "a_signal_releases_nothing", change: [
        "detail::reduceAdd<MemoryOrder::Release, MemoryScope::System>(line(r, ep.rank, EpArrived",
        "detail::reduceAdd<MemoryOrder::Relaxed, MemoryScope::System>(line(r, ep.rank, EpArrived"] },
    Mutant { name: "a_signal_does_not_wait_for_the_block", change: [
        "uint32_t phase) const {\n    blockSync();", "uint32_t phase) const {"] },
    Mutant { name: "a_wait_acquires_nothing", change: [
        "detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least",
        "detail::load<MemoryOrder::Relaxed, MemoryScope::System>(word) >= least"] },
    Mutant { name: "rows_are_freed_before_all_blocks_have_read_them", change: [
        "last = before + own == epoch * ep.maxBlocks;", "last = true;"] },
    Mutant { name: "rows_are_freed_before_the_block_has_read_them", change: ["bool isLast() const {\n    blockSync();", "bool isLast() const {"] },
    Mutant { name: "a_rank_does_not_wait_until_rows_are_free", change: [
        "(!free && !epWaitUntilFree(", "(false && !epWaitUntilFree("] },
    Mutant { name: "freed_rows_are_not_released", change: [
        "detail::store<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpFreed",
        "detail::store<MemoryOrder::Relaxed, MemoryScope::System>(line(thread, ep.rank, EpFreed"] },
    Mutant { name: "rows_of_the_layout_rank_are_freed_at_once", change: [
        "if (call.layout == EpLayoutRank) {\n        // X3.", "if (false) {\n        // X3."] },
    Mutant { name: "the_marks_are_not_all_0_before_a_block_adds_its_own", change: [
        "if (b.givesUp(failed)) return false;\n        areZero = true;", "areZero = true;"] },
    Mutant { name: "marks_are_read_before_they_are_there", change: [
        "loaded.loadIds(call, begin, first, choices);\n    }\n    blockSync();", "loaded.loadIds(call, begin, first, choices);\n    }"] },
    Mutant { name: "marks_are_made_anew_before_they_were_counted", change: [
        "counts[of] += marked(of, EpTokensAtOnce);\n    blockSync();", "counts[of] += marked(of, EpTokensAtOnce);"] },
    Mutant { name: "the_counts_of_a_block_are_not_released", change: [
        "detail::store<MemoryOrder::Release, MemoryScope::Device>(own, 2 * b.epoch)",
        "detail::store<MemoryOrder::Relaxed, MemoryScope::Device>(own, 2 * b.epoch)"] },
    Mutant { name: "the_counts_of_a_block_are_said_before_they_are_there", change: [
        "counts[of] = 0;\n    }\n    blockSync();\n    if (b.thread == 0) detail::store",
        "counts[of] = 0;\n    }\n    if (b.thread == 0) detail::store"] },
    Mutant { name: "a_block_does_not_wait_for_the_counts_of_those_before_it", change: [
        "failed = !b.waitFor(ep.rank, EpWordIsThere{b.countsOf(block), 2 * b.epoch});", ""] },
    Mutant { name: "a_token_is_summed_before_all_phases_have_arrived", change: [
        "failed = !b.hasArrived(b.lane, arrived.phases - 1);", "failed = !b.hasArrived(b.lane, 0);"] },
    Mutant { name: "a_phase_is_signalled_before_all_warps_have_sent", change: [
        "return warpShuffle(before, 0) + 1 == b.warpsOfBlock();", "return warpShuffle(before, 0) == 0;"] },
    Mutant { name: "a_warp_counts_itself_without_a_release", change: [
        "detail::fetchAdd<MemoryOrder::AcquireRelease, MemoryScope::Block, MemorySpace::Any>(heads.sent",
        "detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::Block, MemorySpace::Any>(heads.sent"] },
    Mutant { name: "the_counter_of_the_next_call_does_not_begin_with_0", change: [
        "b.clearNext(EpNextPart);", ""] },
    Mutant { name: "the_rows_of_the_next_call_are_not_counted_from_0", change: ["b.clearNext(EpNextRow);", ""] },
    Mutant { name: "a_row_is_signalled_without_a_release", change: [
        "detail::store<MemoryOrder::Release, MemoryScope::System>(word, b.epoch)",
        "detail::store<MemoryOrder::Relaxed, MemoryScope::System>(word, b.epoch)"] },
    Mutant { name: "a_row_is_taken_before_it_has_come", change: ["failed = !hasCome(row) || failed;", ";"] },
    Mutant { name: "a_token_is_sent_before_its_rows_are_noted", change: [
        "failed = !b.waitFor(ep.rank, EpWordIsThere{b.countsOf(token / each), 2 * b.epoch + 1});", ";"] },
    Mutant { name: "a_block_says_too_early_that_rows_are_noted", change: [
        "sendRoute(token + t, t, b.lane < ep.ranks ? numberOf(ep.nExperts + b.lane, t) : -1);\n        }\n      }\n      blockSync();",
        "sendRoute(token + t, t, b.lane < ep.ranks ? numberOf(ep.nExperts + b.lane, t) : -1);\n        }\n      }"] },
    Mutant { name: "packets_of_all_calls_have_one_flag", change: [
        "packets(b.epoch),\n        tables(reinterpret_cast<const EpCounts*>(call.tables)) {}\n\n  // Returns i / topK",
        "packets(1),\n        tables(reinterpret_cast<const EpCounts*>(call.tables)) {}\n\n  // Returns i / topK"] },
    Mutant { name: "a_sum_has_no_weights", change: [
        "addTo(sums[v][0], weight, came[v].low);", "addTo(sums[v][0], 1.0f, came[v].low);"] },
    Mutant { name: "a_rank_without_tokens_waits_for_no_weights", change: [
        "const bool late = call.late != 0", "const bool late = call.weights != nullptr"] },
    Mutant { name: "the_rows_of_earlier_ranks_are_not_counted", change: ["counts[row.r * ep.local + local] + place", "place"] },
    Mutant { name: "a_rank_takes_its_own_weights_of_rows_as_packets", change: ["        if (r == ep.rank) {\n          const uint64_t at", "        if (false) {\n          const uint64_t at"] },
    Mutant { name: "a_call_by_packets_ends_before_all_ranks_have_begun_it", change: [
        "return thread >= ep.ranks || waitForWord(line(ep.rank, thread, EpBegun, direction), epoch, thread);", "return true;"] },
    Mutant { name: "packets_of_all_calls_have_one_memory", change: ["(epoch & 1) * ep.otherBytes", "0"] },
    Mutant { name: "lines_are_taken_before_they_are_there", change: [
        "(seen.vectors[v].high == flag && packets.isThere(seen.packets[v]))", "true"] },
    Mutant { name: "a_line_is_taken_without_its_flag", change: ["seen.vectors[v].high == flag && ", ""] },
    Mutant { name: "the_first_half_counts_the_call", change: ["if (halves == EpSends) return;", ""] },
    Mutant { name: "an_epoch_is_counted_by_the_first_block_alone", change: ["if (thread == 0) store8(epochs(direction) + block, epoch);", "if (thread == 0 && block == 0) store8(epochs(direction) + block, epoch);"] },
];

/// The kernels as one text, without their own includes.
fn flat() -> String {
    let headers = [
        "ep_call_device.hpp",
        "ep_wait_device.hpp",
        "ep_block_device.hpp",
        "ep_choices_device.hpp",
        "ep_packets_device.hpp",
        "ep_terms_device.hpp",
        "ep_combine_send_device.hpp",
        "ep_combine_device.hpp",
        "ep_dispatch_block_device.hpp",
        "ep_quantise_device.hpp",
        "ep_routing_device.hpp",
        "ep_send_quantised_device.hpp",
        "ep_send_device.hpp",
        "ep_along_device.hpp",
        "ep_receive_device.hpp",
        "ep_dispatch_device.hpp",
        "ep_kernels_device.hpp",
    ];
    let texts = headers.map(|name| {
        let name = format!("mscclpp/{name}");
        mscclpp_kernels::HEADERS.iter().find(|(of, _)| **of == name).expect("a header").1
    });
    let kernels =
        [EXPERTS, EXPERTS_BY_PACKETS, EXPERTS_BF16, EXPERTS_F16, EXPERTS_F32].map(|kernels| kernels.cuda());
    let lines = texts.into_iter().chain(kernels).flat_map(str::lines);
    lines.filter(|line| !line.contains("#include \"mscclpp/ep_")).flat_map(|line| [line, "\n"]).collect()
}

/// Runs calls of a fixed kind with these kernels. Panics if something is wrong.
fn calls(kernels: KernelSource<'static>, random: &mut Random) {
    let (mut model, options) = loop {
        let (model, options) = any(random);
        if model.ranks > 1 {
            break (model, options);
        }
    };
    model.hidden = 40;
    without_the_host(
        &model,
        &Options { kernels: Some(kernels), limit: LIMIT, survives: false, ..options },
        5,
        random.word(),
        false,
    );
}

/// Only some threads of a warp wait for the routes of rows; none may go on to the rows alone when these waits are given up.
fn a_half_ends_without_routes() {
    let route = "sendRoute(token, t, row);\n      part += subs;";
    assert_eq!(flat().matches(route).count(), 1, "the headers have {route:?} once");
    let without_routes = KernelSource::new("without_routes", flat().replace(route, "part += subs;").leak());
    support::ranks(2, |comm, gpu| {
        let builder = Experts::builder(comm, gpu).experts(4).top_k(2).hidden(8).number_type(NumberType::F32);
        let mut builder = builder.capacity(4).timeout(Duration::from_millis(300));
        if comm.bootstrap().rank() == 1 {
            builder = builder.kernels(without_routes);
        }
        let experts = builder.connect().unwrap();
        let stream = gpu.stream().unwrap();
        let choices = support::memory(gpu, &support::bytes(&[0, 2], i32::to_le_bytes));
        let token = Dispatch::new(1, &choices, &support::memory(gpu, &[0; 32]));
        let (_, receive) = experts.dispatch_send(&token, &stream).unwrap();
        comm.bootstrap().barrier().expect("both have sent");
        if experts.rank() == 0 {
            receive.receive(&stream).unwrap();
            let error = experts.synchronize(&stream).expect_err("the routes of rank 1 do not come");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            assert!(stream.query_timeout(TEST_LIMIT).unwrap(), "the kernels wait on");
        }
        comm.bootstrap().barrier().expect("all is done");
    });
}

/// Runs this program again, with one mutant alone: with wrong numbers, kernels may access any memory.
fn is_found(mutant: &Mutant) -> Result<(), Failed> {
    let mut alone = Command::new(env::current_exe()?);
    if alone.env(ALONE, mutant.name).status()?.success() {
        return Err(format!("nothing was wrong in {RUNS} runs").into());
    }
    Ok(())
}

/// Runs a mutant until something is wrong, which ends the process.
fn run_alone(mutant: &Mutant) {
    let [from, to] = mutant.change;
    let text = flat().replace(from, to);
    let kernels = KernelSource::new(mutant.name, text.leak());
    let mut random = Random::new();
    for run in 1..=RUNS {
        if panic::catch_unwind(AssertUnwindSafe(|| calls(kernels, &mut random))).is_err() {
            println!("{}: found in run {run}", mutant.name);
            process::exit(1);
        }
    }
}

fn main() -> ExitCode {
    // SAFETY: this is the only thread, and nothing has read the environment.
    unsafe { env::set_var("MSCCLPP_SIM_RACES", "1") };
    // SAFETY: as above.
    unsafe { env::set_var("MSCCLPP_PLATFORM", "sim") };
    if let Ok(name) = env::var(ALONE) {
        panic::set_hook(Box::new(|panic| println!("{panic}")));
        MUTANTS.iter().filter(|mutant| mutant.name == name).for_each(run_alone);
        return ExitCode::SUCCESS;
    }
    let unchanged = Trial::test("the_kernels_are_right_as_they_are", || {
        let source: KernelSource<'static> = KernelSource::new("experts.cu", flat().leak());
        let mut random = Random::new();
        (0..10).for_each(|_| calls(source, &mut random));
        Ok(())
    })
    .with_ignored_flag(true);
    let texts = Trial::test("each_text_that_a_mutant_changes_is_there_once", || {
        let flat = flat();
        for Mutant { name, change: [from, _] } in MUTANTS {
            assert_eq!(flat.matches(from).count(), 1, "{name}: the headers have {from:?} once");
        }
        Ok(())
    });
    let mutants =
        MUTANTS.iter().map(|mutant| Trial::test(mutant.name, || is_found(mutant)).with_ignored_flag(true));
    let lost_routes = Trial::test("a_half_ends_if_the_routes_of_its_rows_do_not_come", || {
        a_half_ends_without_routes();
        Ok(())
    })
    .with_ignored_flag(true);
    let trials = [texts, unchanged, lost_routes].into_iter().chain(mutants);
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
