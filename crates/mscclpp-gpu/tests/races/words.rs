//! The word of an atomic access is its address and size: words side by side have nothing to do with each other, and accesses
//! of mixed sizes to the same bytes race.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::{DeviceBuffer, Gpu, KernelArgs, KernelSource, LaunchConfig, Module, Platform, Stream};
use mscclpp_test_support::trials;

use super::mutants::{expect_race, message};

const LIMIT: Duration = Duration::from_secs(120);

const SOURCE: &str = include_str!("words.cu");

/// One run of the kernel `blocks`, and the races that the detector must report.
struct Case {
    name: &'static str,
    does: [&'static str; 3],
    /// The marks of the two lines, and a part of the hint; None if nothing is found.
    found: Option<([&'static str; 2], &'static str)>,
}

const RELEASES: &str = "atomicStore<uint32_t, scopeDevice>(words, 1, memoryOrderRelease)";
const ACQUIRES: &str =
    "while (atomicLoad<uint32_t, scopeDevice>(words, memoryOrderAcquire) == 0) detail::betweenPolls()";
const ACQUIRES_NEXT: &str =
    "while (atomicLoad<uint32_t, scopeDevice>(words + 1, memoryOrderAcquire) == 0) detail::betweenPolls()";

/// Nothing orders the data.
const DATA: Option<([&str; 2], &str)> = Some((["write", "read"], ""));

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "an_addition_to_a_neighbour_ends_no_chain",
        does: [RELEASES, "atomicAdd(words, 1u); atomicAdd(words + 1, 1u)", ACQUIRES], found: None },
    Case { name: "an_addition_to_a_neighbour_passes_nothing_on",
        does: [RELEASES, "atomicAdd(words + 1, 1u)", ACQUIRES_NEXT], found: DATA },
    Case { name: "an_exchange_of_a_neighbour_is_no_exchange_of_this_word",
        does: [RELEASES, "atomicExch(words + 1, 5u); atomicCAS(words + 1, 5u, 6u)", ACQUIRES], found: None },
    Case { name: "a_swap_passes_on_what_its_word_has",
        does: [RELEASES, "atomicCAS(words + 1, 0u, 7u); atomicCAS(words, 1u, 6u)", ACQUIRES], found: None },
    Case { name: "a_neighbour_that_changes_makes_no_value_unknown",
        does: ["atomicStore<uint32_t, scopeDevice>(words, 7, memoryOrderRelease); writeData(memory); \
                atomicStore<uint32_t, scopeDevice>(words + 1, 1, memoryOrderRelaxed); \
                atomicStore<uint32_t, scopeDevice>(words, 8, memoryOrderRelaxed)", "", ACQUIRES_NEXT], found: DATA },
    Case { name: "a_store_to_the_same_word_ends_the_chain",
        does: [RELEASES, "atomicStore<uint32_t, scopeDevice>(words, 2, memoryOrderRelaxed)", ACQUIRES], found: DATA },
    Case { name: "a_fence_in_front_of_a_neighbour",
        does: ["__threadfence(); words[1] = 9; atomicStore<uint32_t, scopeDevice>(words, 1, memoryOrderRelaxed)",
            "", "while (atomicLoad<uint32_t, scopeDevice>(words, memoryOrderRelaxed) == 0) detail::betweenPolls(); __threadfence()"],
        found: None },
    Case { name: "a_fence_behind_the_load_of_a_neighbour",
        does: [RELEASES, "atomicAdd(words + 1, 1u)",
            "while (atomicLoad<uint32_t, scopeDevice>(words + 1, memoryOrderRelaxed) == 0) detail::betweenPolls(); __threadfence()"],
        found: DATA },
    Case { name: "a_load_of_this_word_behind_an_acquire_of_a_neighbour",
        does: ["__threadfence(); atomicStore<uint32_t, scopeDevice>(words, 1, memoryOrderRelaxed)", "atomicAdd(words + 1, 1u)",
            "while (atomicLoad<uint32_t, scopeDevice>(words, memoryOrderRelaxed) == 0) detail::betweenPolls(); \
             atomicLoad<uint32_t, scopeDevice>(words + 1, memoryOrderAcquire)"],
        found: Some((["write", "read"], "acquires nothing")) },
    Case { name: "the_scope_of_a_neighbour_is_its_own",
        does: [RELEASES, "atomicExch_block(words + 1, 5u)", ACQUIRES], found: None },
    Case { name: "a_word_of_8_bytes_is_acquired_by_its_half",
        does: ["atomicStore<uint64_t, scopeDevice>(whole, 1, memoryOrderRelease)", "", ACQUIRES],
        found: Some((["first", "third"], "mixed sizes, 8 and 4 bytes")) },
    Case { name: "the_data_of_a_word_that_is_acquired_by_its_half",
        does: ["atomicStore<uint64_t, scopeDevice>(whole, 1, memoryOrderRelease)", "", ACQUIRES],
        found: Some((["write", "read"], "have mixed sizes")) },
    Case { name: "a_word_of_4_bytes_is_acquired_by_one_of_8",
        does: [RELEASES, "", "while (atomicLoad<uint64_t, scopeDevice>(whole, memoryOrderAcquire) == 0) detail::betweenPolls()"],
        found: Some((["first", "third"], "mixed sizes, 4 and 8 bytes")) },
    Case { name: "mixed_sizes_and_another_scope",
        does: ["atomicAdd_block(words, 1u)", "atomicExch(reinterpret_cast<unsigned long long*>(whole), 1ull)", "return"],
        found: Some((["first", "second"], "mixed sizes, 4 and 8 bytes")) },
    Case { name: "additions_of_mixed_sizes",
        does: ["atomicAdd(words, 1u)", "atomicAdd(reinterpret_cast<unsigned long long*>(whole), 1ull)", "return"],
        found: Some((["first", "second"], "mixed sizes, 4 and 8 bytes")) },
    Case { name: "a_half_may_be_read_behind_the_acquire_of_another_word",
        does: ["atomicStore<uint64_t, scopeDevice>(whole + 1, 1, memoryOrderRelaxed); atomicStore<uint32_t, scopeDevice>(words, 1, \
                memoryOrderRelease)", "",
            "while (atomicLoad<uint32_t, scopeDevice>(words, memoryOrderAcquire) == 0) detail::betweenPolls(); \
             atomicLoad<uint32_t, scopeDevice>(words + 2, memoryOrderAcquire)"],
        found: None },
    Case { name: "a_word_keeps_its_release_though_its_half_is_read",
        does: ["atomicStore<uint64_t, scopeDevice>(whole, 1, memoryOrderRelease); atomicLoad<uint32_t, scopeDevice>(words, \
                memoryOrderAcquire)", "",
            "while (atomicLoad<uint64_t, scopeDevice>(whole, memoryOrderAcquire) == 0) detail::betweenPolls()"],
        found: None },
    Case { name: "a_packet_is_read_by_its_flag_alone",
        does: ["reinterpret_cast<LL8Packet*>(memory)->write(3, 1)", "",
            "while (atomicLoad<uint32_t>(words + 1, memoryOrderAcquire) == 0) detail::betweenPolls()"],
        found: Some((["first", "third"], "mixed sizes, 8 and 4 bytes")) },
    Case { name: "packets_side_by_side",
        does: ["reinterpret_cast<LL8Packet*>(memory)[1].write(3, 1); reinterpret_cast<LLPacket*>(memory)[1].write(3, 1); \
                atomicStore<uint32_t, scopeDevice>(words, 1, memoryOrderRelease)",
            "atomicAdd(words + 1, 1u)",
            "while (atomicLoad<uint32_t, scopeDevice>(words, memoryOrderAcquire) == 0) detail::betweenPolls(); \
             reinterpret_cast<LL8Packet*>(memory)[1].read(1); reinterpret_cast<LLPacket*>(memory)[1].read(1)"],
        found: None },
    Case { name: "halves_are_added_to_by_themselves_and_as_a_pair",
        does: ["atomicAdd(halves, __float2half(1)); atomicAdd(pairs, __floats2half2_rn(1, 1))", "atomicAdd(halves + 1, __float2half(1))",
            "atomicAdd(pairs, __floats2half2_rn(1, 1)); return"], found: None },
    Case { name: "an_addition_to_a_pair_releases_both_halves",
        does: ["atomicFetchAdd<__half2, scopeDevice>(pairs, __floats2half2_rn(1, 1), memoryOrderRelease)",
            "atomicAdd(halves, __float2half(1))",
            "while (__half2float(atomicLoad<__half, scopeDevice>(halves + 1, memoryOrderAcquire)) == 0) detail::betweenPolls()"],
        found: None },
    Case { name: "a_pair_is_no_word_of_4_bytes",
        does: ["atomicAdd(pairs, __floats2half2_rn(1, 1))", "", ACQUIRES],
        found: Some((["first", "third"], "mixed sizes, 2 and 4 bytes")) },
];

pub(crate) fn trials() -> Vec<Trial> {
    let cases = CASES.iter().map(|case| Trial::test(case.name, || is_found(case)));
    let others = trials![
        words_at_every_place_of_16_bytes,
        a_word_is_acquired_by_its_address_and_size,
        the_host_writes_two_flags_at_once,
    ];
    cases.chain(others).collect()
}

fn is_found(case: &Case) -> Result<(), Failed> {
    let name = format!("{}.cu", case.name);
    let parts = ["/* first */", "/* second */", "/* third */"];
    let text =
        parts.iter().zip(case.does).fold(SOURCE.to_owned(), |text, (part, does)| text.replace(part, does));
    let said = Words::new(&name, &text).run("blocks", [0; 5]);
    let Some((marks, hint)) = case.found else {
        return if said.is_empty() { Ok(()) } else { Err(said.into()) };
    };
    let places = marks.map(|mark| format!(" at {}", place(&text, &name, mark)));
    expect_race(&said, &places, hint)
}

/// The line with a mark.
pub(crate) fn place(text: &str, name: &str, mark: &str) -> String {
    let mark = format!("// @{mark}\n");
    let line = text.split_inclusive('\n').position(|line| line.ends_with(&mark)).expect("the mark is there");
    format!("{name}:{}", line + 1)
}

/// All words of up to 8 bytes in the first 8, and all accesses of up to 16 bytes to the first 16.
fn pairs() -> impl Iterator<Item = ([i32; 2], [i32; 2])> {
    let places = |most: i32, end: i32| {
        let sizes = [1, 2, 4, 8, 16].into_iter().filter(move |bytes| *bytes <= most);
        sizes.flat_map(move |bytes| (0..end).step_by(bytes as usize).map(move |at| [bytes, at]))
    };
    places(8, 8).flat_map(move |word| places(16, 16).map(move |other| (word, other)))
}

fn shares_bytes([bytes, at]: [i32; 2], [other_bytes, other_at]: [i32; 2]) -> bool {
    at < other_at + other_bytes && other_at < at + bytes
}

fn check(said: &str, expected: Option<&str>, what: &str) -> Result<(), Failed> {
    let is_right = expected.map_or(said.is_empty(), |expected| said.contains(expected));
    if is_right { Ok(()) } else { Err(format!("{what}: {expected:?} expected, but: {said}").into()) }
}

fn words_at_every_place_of_16_bytes() -> Result<(), Failed> {
    let words = Words::new("between.cu", SOURCE);
    let read = format!("  read at {}\n", place(SOURCE, "between.cu", "read"));
    let plain = format!("  write at {}\n", place(SOURCE, "between.cu", "plain"));
    for (word, other) in pairs() {
        for is_plain in [false, true] {
            let said = words.run("between", [word[0], word[1], other[0], other[1], i32::from(is_plain)]);
            // A vector access is one to each of its elements, here of 8 bytes.
            let is_same = word == other || (other[0] == 16 && word[0] == 8);
            let expected = match (shares_bytes(word, other), is_plain) {
                (false, _) => None,
                (true, true) => Some(plain.as_str()),
                (true, false) if is_same => Some(read.as_str()),
                (true, false) => Some("mixed sizes"),
            };
            check(&said, expected, &format!("{word:?} and {other:?}, plain: {is_plain}"))?;
        }
    }
    Ok(())
}

fn a_word_is_acquired_by_its_address_and_size() -> Result<(), Failed> {
    let words = Words::new("other.cu", SOURCE);
    for (word, other) in pairs().filter(|(_, other)| other[0] <= 8) {
        let said = words.run("other", [word[0], word[1], other[0], other[1], 0]);
        let expected = match shares_bytes(word, other) {
            false => Some("releases nothing"),
            true if word == other => None,
            true => Some("mixed sizes"),
        };
        check(&said, expected, &format!("{word:?} and {other:?}"))?;
    }
    Ok(())
}

/// Its words have no size of their own: with each flag comes what the host knew.
fn the_host_writes_two_flags_at_once() -> Result<(), Failed> {
    let text = SOURCE
        .replace("scopeDevice", "scopeSystem")
        .replace("writeData(memory);\n    /* first */", "/* first */");
    let text = text.replace("/* second */", "atomicAdd_system(words, 1u)");
    let words = Words::new(
        "host_writes.cu",
        &text.replace("/* third */", &ACQUIRES_NEXT.replace("scopeDevice", "scopeSystem")),
    );
    let (stream, memory) = (words.gpu.stream()?, words.gpu.allocate(256)?);
    words.launch(&stream, &memory, "blocks", [0; 5]);
    memory.write(128, &42i32.to_ne_bytes())?;
    memory.write(0, &[1, 0, 0, 0, 1, 0, 0, 0])?;
    check(&message(stream.synchronize_timeout(LIMIT)).unwrap_or_default(), None, "the host's flags")
}

struct Words {
    gpu: Gpu,
    module: Module,
}

impl Words {
    fn new(name: &str, text: &str) -> Self {
        let gpu = Platform::Sim.gpu(3).unwrap();
        let module = Module::load(&gpu, &KernelSource::new(name, text)).unwrap();
        Self { gpu, module }
    }

    /// Runs a kernel in memory of zeros, and returns what it says.
    fn run(&self, kernel: &str, args: [i32; 5]) -> String {
        let (stream, memory) = (self.gpu.stream().unwrap(), self.gpu.allocate(256).unwrap());
        self.launch(&stream, &memory, kernel, args);
        message(stream.synchronize_timeout(LIMIT)).unwrap_or_default()
    }

    fn launch(&self, stream: &Stream, memory: &DeviceBuffer, kernel: &str, args: [i32; 5]) {
        let args = args.into_iter().fold(KernelArgs::new().with(memory.ptr()), KernelArgs::with);
        let kernel = self.module.kernel(kernel).unwrap();
        // SAFETY: the kernel's arguments; the memory outlives the work, which is waited for.
        unsafe { kernel.launch(stream, LaunchConfig::linear(3, 1), &args).unwrap() };
    }
}
