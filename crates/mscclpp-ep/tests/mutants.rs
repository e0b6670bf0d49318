//! Copies of the kernels, each with one change that makes them wrong: the race detector of simulated devices finds it, or the
//! data differ from the oracle's, or a call does not end. Each takes seconds to compile, so `ci/run.sh races` runs them.

#[path = "it/checked.rs"]
mod checked;
#[path = "it/oracle.rs"]
mod oracle;
#[path = "it/rounds.rs"]
mod rounds;
#[path = "it/support.rs"]
mod support;

use std::{
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp::KernelSource;
use mscclpp_ep::Layout;
use mscclpp_test_support::Random;

use crate::{
    checked::Options,
    rounds::{any, without_the_host},
};

/// The most runs in which a mutant may stay unnoticed.
const RUNS: usize = 200;

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
        "detail::fetchAdd<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpArrived",
        "detail::fetchAdd<MemoryOrder::Relaxed, MemoryScope::System>(line(thread, ep.rank, EpArrived"] },
    Mutant { name: "a_signal_does_not_wait_for_the_block", change: ["void signal() const {\n    blockSync();", "void signal() const {"] },
    Mutant { name: "a_wait_acquires_nothing", change: [
        "detail::load<MemoryOrder::Acquire, MemoryScope::System>(word) >= least",
        "detail::load<MemoryOrder::Relaxed, MemoryScope::System>(word) >= least"] },
    Mutant { name: "rows_are_freed_before_all_blocks_have_read_them", change: [
        "last = before + share() == epoch * ep.maxBlocks;", "last = true;"] },
    Mutant { name: "rows_are_freed_before_the_block_has_read_them", change: ["bool isLast() const {\n    blockSync();", "bool isLast() const {"] },
    Mutant { name: "a_rank_does_not_wait_until_rows_are_free", change: [
        "return waitForWord(line(ep.rank, of, EpFreed, direction), epoch - 1, of);", "return true;"] },
    Mutant { name: "freed_rows_are_not_released", change: [
        "detail::store<MemoryOrder::Release, MemoryScope::System>(line(thread, ep.rank, EpFreed",
        "detail::store<MemoryOrder::Relaxed, MemoryScope::System>(line(thread, ep.rank, EpFreed"] },
    Mutant { name: "rows_of_the_layout_rank_are_freed_at_once", change: [
        "if (b.isLast() && call.layout != EpLayoutRank) b.free", "if (b.isLast()) b.free"] },
    Mutant { name: "the_counts_are_not_complete_before_a_block_numbers_its_own", change: [
        "const uint32_t choices = n * ep.topK;\n    blockSync();", "const uint32_t choices = n * ep.topK;"] },
    Mutant { name: "choices_are_read_before_they_are_there", change: [
        "load4(ep.experts + expert);\n    }\n    blockSync();", "load4(ep.experts + expert);\n    }"] },
    Mutant { name: "an_expert_counts_a_token_twice", change: ["has = true;\n          }", "has = true; ++next;\n          }"] },
    Mutant { name: "packets_of_all_calls_have_one_flag", change: ["packets(b.epoch),\n        tables(reinterpret_cast<const EpCounts*>(call.tables)),\n        packed", "packets(1),\n        tables(reinterpret_cast<const EpCounts*>(call.tables)),\n        packed"] },
    Mutant { name: "warps_without_words_of_a_row_take_its_weights", change: [
        "const uint32_t most = (words + 31) / 32, free", "const uint32_t most = 8, free"] },
    Mutant { name: "a_sum_has_no_weights", change: [
        "addTo(sums, term.weight, messageWord(term.row", "addTo(sums, 1.0f, messageWord(term.row"] },
    Mutant { name: "the_rows_of_earlier_ranks_are_not_counted", change: ["counts[row.r * ep.local + local] + place", "place"] },
    Mutant { name: "an_epoch_is_counted_by_the_first_block_alone", change: ["if (thread == 0) store8(epochs(direction) + block, epoch);", "if (thread == 0 && block == 0) store8(epochs(direction) + block, epoch);"] },
];

/// The kernels as one text, without their own includes.
fn flat() -> String {
    let headers = [
        "ep_call_device.hpp",
        "ep_combine_device.hpp",
        "ep_dispatch_block_device.hpp",
        "ep_send_device.hpp",
        "ep_receive_device.hpp",
        "ep_dispatch_device.hpp",
    ];
    let texts = headers.map(|name| {
        let name = format!("mscclpp/{name}");
        mscclpp_kernels::HEADERS.iter().find(|(of, _)| **of == name).expect("a header").1
    });
    let lines = texts.into_iter().chain([mscclpp_kernels::EXPERTS.cuda()]).flat_map(str::lines);
    let text: String =
        lines.filter(|line| !line.contains("#include \"mscclpp/ep_")).flat_map(|line| [line, "\n"]).collect();
    // A block routes its tokens in several steps, as it does when they are many.
    text.replace("EpChoicesAtOnce = 1024", "EpChoicesAtOnce = 8")
        .replace("EpTokensAtOnce = 64", "EpTokensAtOnce = 2")
}

/// Runs calls of a fixed kind with these kernels. Panics if something is wrong.
fn calls(kernels: KernelSource<'static>, random: &mut Random) {
    let (mut model, mut options) = loop {
        let (model, options) = any(random);
        if model.ranks > 1 && model.capacity > 4 {
            break (model, options);
        }
    };
    model.hidden = 40;
    options.packets = 3;
    if random.below(2) == 0 {
        // Few rows, each with the work of several warps, and weights that come late.
        model.top_k = 1;
        options.packets = model.capacity;
        options.layouts = vec![Layout::Expert; model.ranks];
        (options.exact, options.late_weights) = (false, true);
    }
    without_the_host(
        &model,
        &Options { kernels: Some(kernels), limit: LIMIT, ..options },
        20,
        random.word(),
        false,
    );
}

fn is_found(source: KernelSource<'static>) -> Result<usize, Failed> {
    let mut random = Random::new();
    for run in 1..=RUNS {
        if panic::catch_unwind(AssertUnwindSafe(|| calls(source, &mut random))).is_err() {
            return Ok(run);
        }
    }
    Err(format!("nothing was wrong in {RUNS} runs").into())
}

fn main() -> ExitCode {
    // SAFETY: this is the only thread, and nothing has read the environment.
    unsafe { std::env::set_var("MSCCLPP_SIM_RACES", "1") };
    // SAFETY: as above.
    unsafe { std::env::set_var("MSCCLPP_PLATFORM", "sim") };
    let unchanged = Trial::test("the_kernels_are_right_as_they_are", || {
        let source: KernelSource<'static> = KernelSource::new("experts.cu", flat().leak());
        let mut random = Random::new();
        (0..10).for_each(|_| calls(source, &mut random));
        Ok(())
    })
    .with_ignored_flag(true);
    let mutants = MUTANTS.iter().map(|mutant| {
        Trial::test(mutant.name, || {
            let [from, to] = mutant.change;
            let text = flat();
            assert_eq!(text.matches(from).count(), 1, "the headers have {from:?} once");
            let text = text.replace(from, to);
            let run = is_found(KernelSource::new(mutant.name, text.leak()))?;
            println!("{}: found in run {run}", mutant.name);
            Ok(())
        })
        .with_ignored_flag(true)
    });
    panic::set_hook(Box::new(|panic| println!("{panic}")));
    libtest_mimic::run(&Arguments::from_args(), [unchanged].into_iter().chain(mutants).collect()).exit_code()
}
