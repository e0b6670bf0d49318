//! Sources that are compiled, and sources that are refused.

use mscclpp_gpu::{Error, KernelArgs, KernelSource, LaunchConfig, Module, Platform};

use super::{launch, words};

#[test]
fn assembly_of_gpus_is_refused_with_its_line() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let load = |text: &str| Module::load(&gpu, &KernelSource::new("mine.cu", text));
    let text = "#define RETURN asm volatile(\"ret;\")\nextern \"C\" __global__ void f() {\n  RETURN;\n}\n";
    let Err(Error::Compile { name, log }) = load(text) else { panic!("it was compiled") };
    assert!(name == "mine.cu" && log.starts_with("mine.cu:3: inline assembly"), "{name}: {log}");
    load(&format!("#if !defined(MSCCLPP_DEVICE_SIM)\n{text}#endif\n")).unwrap();
}

#[test]
fn a_source_that_does_not_compile_shows_what_the_compiler_says() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let source = KernelSource::new("mine.cu", "\n\nextern \"C\" __global__ void f() { nonsense; }\n");
    let Err(Error::Compile { name, log }) = Module::load(&gpu, &source) else { panic!("it was compiled") };
    assert_eq!(name, "mine.cu");
    assert!(log.contains("mine.cu:3") && log.contains("nonsense"), "{log}");
}

#[test]
fn code_that_would_run_when_a_module_is_loaded_is_refused_by_name() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let refused = |text: &str, named: &[&str]| {
        // This source would end the process.
        let text = format!(
            "#include <stdlib.h>\n__device__ int ends() {{ abort(); }}\n{text}\nextern \"C\" __global__ void f() {{}}\n"
        );
        match Module::load(&gpu, &KernelSource::new("mine.cu", &text)) {
            Err(Error::Compile { name, log }) => {
                assert_eq!(name, "mine.cu");
                assert!(named.iter().all(|word| log.contains(word)), "{log}");
            }
            other => panic!("{text}: {other:?}"),
        }
    };
    refused("__device__ int shown = ends();", &["_GLOBAL__sub_I", "shown must be initialised", "set_symbol"]);
    refused(
        "__device__ int other[3] = {1, 2, 3};\nstatic __device__ int hidden = ends();\n\
         extern \"C\" __global__ void g(int* p) { *p = hidden++ + other[0]++; }",
        &["hidden must be"],
    );
    refused("__attribute__((constructor)) static void at_first() { ends(); }", &["at_first"]);
    refused("__attribute__((constructor(200))) static void at_first() { ends(); }", &["at_first"]);
    refused("__attribute__((destructor)) static void at_last() { ends(); }", &["at_last"]);
    refused(
        "__attribute__((section(\".ctors\"), used)) static int (*listed)() = ends;",
        &["ends", "would run when the module is loaded"],
    );
    if cfg!(target_arch = "x86_64") {
        refused(
            "extern \"C\" void* choose() { ends(); return 0; }\n\
             __device__ void chosen() __attribute__((ifunc(\"choose\")));",
            &["chosen", "ifunc"],
        );
    }
    // Code that the library itself adds is checked, too.
    let headers = [("mscclpp_sim/trace.cpp", "#include <stdlib.h>\nstatic int x = (abort(), 1);\n")];
    let source = KernelSource::new("mine.cu", "extern \"C\" __global__ void f() {}").with_headers(&headers);
    assert!(matches!(Module::load(&gpu, &source), Err(Error::Compile { .. })));
    // Constants are allowed, and so are values that the compiler computes.
    let fine = "__device__ double x = 3.0 * 2;\n__constant__ int table[2] = {1, 2};\nstruct S { int* p = nullptr; };\n\
                __device__ S s;\n__device__ int* to = &table[1];\nextern \"C\" __global__ void f() {}\n";
    Module::load(&gpu, &KernelSource::new("mine.cu", fine)).unwrap();
}

#[test]
fn names_of_headers_and_sources_stay_names() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    // The file is next to the folder in which kernels are compiled, where temporary files are.
    let outside = std::env::temp_dir().join(format!("mscclpp-outside-{}.hpp", std::process::id()));
    let outside = outside.to_str().expect("a path of text");
    let text = "extern \"C\" __global__ void f() {}";
    let file = outside.rsplit('/').next().expect("a name");
    for name in [outside, "/", "", "..", "a/..", "a\0b"] {
        let headers = [(name, "#define ONE 1\n")];
        let loaded = Module::load(&gpu, &KernelSource::new("mine.cu", text).with_headers(&headers));
        assert!(
            matches!(&loaded, Err(Error::InvalidArgument(why)) if why.contains("name of a header")),
            "{name:?}: {loaded:?}"
        );
    }
    // The names lead one folder up, as from a source beside a folder of headers, or several.
    for up in 1..4 {
        let name = format!("{}{file}", "../".repeat(up));
        let text =
            format!("#include \"{name}\"\nextern \"C\" __global__ void f() {{ static_assert(ONE == 1); }}");
        let headers = [(name.as_str(), "#define ONE 1\n")];
        Module::load(&gpu, &KernelSource::new("mine.cu", &text).with_headers(&headers)).unwrap();
        assert!(!std::path::Path::new(outside).exists(), "{name} was written to {outside}");
    }
    // A compiler would take these names for an option, or for a file of options.
    for name in ["-fno-such-option", "@options", ""] {
        Module::load(&gpu, &KernelSource::new(name, text)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn headers_of_ones_own_are_found() {
    let gpu = Platform::Sim.gpu(0).unwrap();
    let text = "#include \"deep/seven.hpp\"\nextern \"C\" __global__ void f(int* p) { *p = SEVEN; }\n";
    let headers = [("deep/seven.hpp", "#define SEVEN 7\n")];
    let module = Module::load(&gpu, &KernelSource::new("mine.cu", text).with_headers(&headers)).unwrap();
    let (stream, word) = (gpu.stream().unwrap(), gpu.allocate(8).unwrap());
    let kernel = module.kernel("f").unwrap();
    launch(&kernel, &stream, LaunchConfig::linear(1, 1), &KernelArgs::new().with(word.ptr())).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(words(&word), [7]);
}
