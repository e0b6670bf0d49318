#!/usr/bin/env bash
# Runs everything that CI checks, each step named and timed. It runs from any folder, and installs what it needs.
#
#   ci/run.sh              the steps of every change
#   ci/run.sh long         the steps of a release, which take an hour or more
#   ci/run.sh STEP...      only these steps
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
STEPS=(readme first_program format comments clippy docs api kernels headers races hip verbs layers python rdma loom fuzz simulation)
LONG=(site deny package oldest features semver verbs_generated wheels torch races_all sanitizers soak long_fuzz long_simulation collectives)

# Runs the commands that the README promises, before anything is installed: they need only Rust and a linker. In CI the checkout
# is clean; the steps that follow use what these commands have built.
step_readme() {
    local commands
    mapfile -t commands < <(sed -n '/<!-- ci: run these -->/,/<!-- ci: end -->/{/^cargo /p}' README.md)
    [ "${#commands[@]}" -eq 2 ] || { echo "README.md should have two commands, found ${#commands[@]}"; return 1; }
    for command in "${commands[@]}"; do
        echo "\$ $command"
        # If a command hangs, this ends it while there is time left for an error.
        timeout 2400 bash -c "$command"
    done
}

# Runs the first program of the README, exactly as it is printed there.
step_first_program() { bash ci/first-program.sh; }

step_format() { cargo fmt --all --check; }

# Comments that name their subject, quote no figures, and have short lines.
step_comments() { python3 ci/comments.py; }

step_clippy() { cargo clippy --workspace --all-targets -- -D warnings; }

# The reference must have no warnings, the links of the book must lead somewhere, and its code must be that of its sources.
step_docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --features mscclpp-collectives/cudarc --no-deps
    # The facade shows items of inner crates, whose paths mean nothing to its users.
    if grep -rnoE '>crate::.{0,60}' "${CARGO_TARGET_DIR:-target}/doc/mscclpp"; then
        echo "write [\`Name\`](crate::Name) instead of [\`crate::Name\`]"
        return 1
    fi
    python3 docs/check.py
    python3 docs/figures/make.py --check
    python3 docs/paste.py --check
}

# Builds the book and the reference as one site, and checks that its links lead somewhere and its figures are those of their
# files.
step_site() { cargo xtask site --check; }

# Checks that docs/api lists the crates' public items, and that their features are documented.
step_api() {
    python3 ci/features.py
    cargo xtask api --check
}

# Checks that the PTX that is checked in is that of the sources.
step_kernels() {
    python3 -m pip --version > /dev/null 2>&1 || install_packages python3-pip
    cargo xtask build-kernels --check
}

# Compiles the device headers and kernels with nvcc, as C++17 and C++20, and the headers with a plain C++ compiler.
step_headers() {
    command -v c++ > /dev/null || install_packages g++
    python3 -m venv --help > /dev/null 2>&1 || install_packages python3-venv
    bash ci/headers.sh
}

# Checks that the race detector finds nothing in kernels of each kind of the repository, nor in the conformance suite with some
# schedules. The tests of the workspace, which `readme` runs, show that it finds mutants with races.
step_races() {
    command -v c++ > /dev/null || install_packages g++
    clean_of_races mscclpp it kernels:: kernels_on_sim:: mesh:: arguments:: blocks:: ring:: packets::flags_change \
        --skip port_kernels::
    clean_of_races mscclpp-collectives it calls:: published:: symmetric:: replays:: chunks::chunks_go_by_lanes
    clean_of_races mscclpp-ep it
    # A schedule affects kernels alone, which no other cases have.
    races_of_seeds 3 mscclpp-cuda-ipc $(printf -- '--skip ::%s:: ' transfers queues lifetimes memories endpoints hostile process semaphores)
}

# Checks all other kernels of the repository, with more schedules. Other tests have no kernels, or the same ones.
step_races_all() {
    command -v c++ > /dev/null || install_packages g++
    clean_of_races mscclpp-gpu it --skip overruns:: --skip memory::
    clean_of_races mscclpp it memory_channels:: packets:: ported:: lifetimes:: port_lifetimes:: port_kernels::
    clean_of_races mscclpp examples
    clean_of_races mscclpp-collectives it algorithm:: groups:: oracle:: rows:: registered:: nodes:: nodes_of_one::
    local example
    for example in two_ranks all_reduce all_reduce_by_hand all_reduce_rms_norm; do
        MSCCLPP_PLATFORM=sim MSCCLPP_SIM_RACES=1 cargo run -p mscclpp-collectives --example "$example"
    done
    for example in moe_layer fused_experts; do
        MSCCLPP_PLATFORM=sim MSCCLPP_SIM_RACES=1 cargo run -p mscclpp-ep --example "$example"
    done
    clean_of_races mscclpp-proxy '.*'
    MSCCLPP_PLATFORM=sim MSCCLPP_SIM_RACES=1 cargo test -p mscclpp-proxy --doc
    clean_of_races mscclpp-bench it runs::
    run_tests mscclpp-ep mutants --ignored
    run_tests cuda it --ignored
    clean_of_races mscclpp-ethernet conformance
    races_of_seeds 100 mscclpp-cuda-ipc
    # Only these cases have kernels, and a schedule affects nothing else.
    races_of_seeds 100 mscclpp-ethernet ::host_signals::
}

# clean_of_races PACKAGES TESTS [ARGUMENT...]: runs tests under the race detector. The skipped tests have races on purpose:
# docs/src/races.md.
clean_of_races() {
    MSCCLPP_PLATFORM=sim MSCCLPP_SIM_RACES=1 run_tests "$@" \
        --skip a_ring_without_one_kernel_names --skip signals_that_do_not_wait_for_their_turn \
        --skip packets_of_ports_go_back_and_forth
}

# races_of_seeds N PACKAGE [CASE...]: runs the conformance suite of a transport with N schedules. One case runs at a time, because
# all kernels of a process share a schedule.
races_of_seeds() {
    local seeds=$1 package=$2
    shift 2
    export -f run_tests clean_of_races
    seq "$seeds" | xargs -P "$(nproc)" -I SEED bash -c '
        export MSCCLPP_SIM_SCHEDULE=SEED
        clean_of_races "$@" || { echo "with MSCCLPP_SIM_SCHEDULE=SEED"; exit 1; }' \
        races "$package" conformance --quiet --test-threads=1 "$@"
}

# run_tests PACKAGES TESTS [ARGUMENT...]: runs the test programs with these names, which are extended regular expressions, as the
# workspace's build has them. For `cargo test -p PACKAGE`, cargo would build most of the workspace again, with fewer features.
run_tests() {
    local packages=$1 tests=$2 programs folder program
    shift 2
    programs=$(cargo test --quiet --workspace --no-run --message-format json | python3 -c '
import json, pathlib, re, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        folder = pathlib.Path(built["manifest_path"]).parent
        if re.fullmatch(sys.argv[1], folder.name) and re.fullmatch(sys.argv[2], built["target"]["name"]):
            print(folder, built["executable"])' "$packages" "$tests") || return
    [ -n "$programs" ] || { echo "no test $tests in a package $packages"; return 1; }
    while read -r folder program; do
        echo "=== $program $*"
        (cd "$folder" && "$program" "$@" < /dev/null) || return
    done <<< "$programs"
}

# Runs the tests of the crates with unsafe code under AddressSanitizer. Kernels are compiled without it: the simulated platform
# checks each of their accesses itself.
step_sanitizers() {
    command -v c++ > /dev/null || install_packages g++
    local host package packages=()
    host=$(rustc -vV | sed -n 's/^host: //p')
    for package in conformance core cuda-ipc ethernet gpu gpu-sys ib proxy verbs-sys; do packages+=(-p "mscclpp-$package"); done
    # The flag is unstable, so a stable compiler accepts it only with the variable. With --target it does not apply to build
    # scripts. The feature makes corosensei announce each change of stacks.
    # abort_on_error: a process with an error ends by a signal, like one that touches forbidden memory without the sanitizer; a
    # test depends on that. detect_leaks: fakes of drivers keep memory that was freed, to notice later uses; separate tests
    # (`resources`) look for leaks.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/sanitizers \
        ASAN_OPTIONS=abort_on_error=1:detect_leaks=0 MSCCLPP_PLATFORM=sim \
        cargo test --target "$host" --tests "${packages[@]}" --features corosensei/sanitizer
}

# Checks that the types of libibverbs agree with the installed header and the crate rdma-sys. That crate's bindgen needs an old
# libclang: 14 works, 19 makes it panic.
step_verbs() {
    with_libclang clippy -p mscclpp-verbs-sys --features rdma-sys --all-targets -- -D warnings
    with_libclang test -p mscclpp-verbs-sys --features rdma-sys
}

# Checks that the types of libibverbs are those that bindgen makes of rdma-core's headers.
step_verbs_generated() { with_libclang xtask gen-verbs --check; }

# with_libclang ARGUMENT...: runs cargo with the library that bindgen loads.
with_libclang() {
    local clang=/usr/lib/llvm-14/lib
    [ -e "$clang/libclang.so.1" ] && [ -e /usr/include/infiniband/verbs.h ] && command -v pkg-config > /dev/null ||
        install_packages libibverbs-dev librdmacm-dev pkg-config libclang1-14 libclang-common-14-dev
    LIBCLANG_PATH=$clang cargo "$@"
}

# Compiles the device headers and kernels for AMD GPUs, with clang alone, and checks the instructions for release, acquire and
# packets. Then tests the HIP platform on a fake of the HIP runtime: devices, memory shared between processes, jobs.
step_hip() {
    local clang
    clang=$(compgen -c clang++- | grep -E '^clang\+\+-(19|2[0-9])$' | head -n 1 || true)
    [ -n "$clang" ] || install_packages clang-19
    python3 ci/hip.py

    # The workspace's build has the fake, and the feature `hip` of mscclpp-gpu, which the crates above only pass on. libnccl.so has
    # the same name in every build, so it is made again.
    local built fake programs
    built=$(realpath -m "${CARGO_TARGET_DIR:-target}/debug/deps")
    fake=$(realpath -m "${CARGO_TARGET_DIR:-target}/fake-hip")
    rm -f "$built/libnccl.so"
    cargo test --quiet --workspace --no-run
    mkdir -p "$fake"
    ln -sf "$built/libfake_hip.so" "$fake/libamdhip64.so.7"
    ln -sf "$built/libfake_hip.so" "$fake/libhiprtc.so.7"
    local -x LD_LIBRARY_PATH=$fake MSCCLPP_PLATFORM=hip
    programs=$(basename -s .rs crates/mscclpp-{gpu,cuda-ipc}/tests/*.rs | paste -sd '|')
    # The fake finds other processes by their pid.
    run_tests 'mscclpp(-gpu|-cuda-ipc)?' "$programs|processes" --skip ranks_in_pid_namespaces_of_their_own
    run_tests mscclpp it communicator:: lifetimes:: port_kernels:: --skip port_lifetimes::
    # Sources of `builtins` have features that only CUDA compilers have.
    run_tests 'mscclpp-(gpu|cuda-ipc)' it --skip builtins::
    # The library in place of NCCL, with streams of a runtime that other code made.
    timeout 300 python3 crates/mscclpp-nccl/tests/clients/by_ctypes.py "$built/libnccl.so" 3
}

# Checks which crate depends on which.
step_layers() { bash ci/layers.sh; }

# Tests the Python package on simulated devices. The step `wheels` builds it as it is released.
step_python() {
    local venv=target/python
    python3 ci/licences.py --check
    command -v c++ > /dev/null || install_packages g++
    python3 -m venv --clear "$venv" 2> /dev/null || { install_packages python3-venv && python3 -m venv --clear "$venv"; }
    # Another minor version of the checkers may find other things.
    "$venv/bin/pip" install --quiet 'maturin>=1.12,<2' pytest pytest-xdist 'mypy>=2.4,<2.5' numpy 'ruff>=0.17,<0.18' mpi4py mpich
    install_python "$venv"
    (cd crates/mscclpp-python && "../../$venv/bin/ruff" format --check . && "../../$venv/bin/ruff" check .)
    (cd crates/mscclpp-python && "../../$venv/bin/python" -m pytest -q -n "$(nproc)" --dist loadfile tests)
    # The program for others' suites, with small suites that stand in for them.
    "$venv/bin/ruff" format --config crates/mscclpp-python/pyproject.toml --check ci/suites
    "$venv/bin/ruff" check --config crates/mscclpp-python/pyproject.toml ci/suites
    "$venv/bin/python" -m pytest -q -p no:cacheprovider ci/suites
}

# install_python VENV: builds the package in the workspace's target folder, and installs it.
install_python() {
    PATH=$PWD/$1/bin:$PATH CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}") pip install --quiet --no-build-isolation \
        --no-deps --config-settings=build-args="--profile dev" crates/mscclpp-python/
}

# Runs the tests that need PyTorch, with its CPU tensors on simulated devices. Its wheel brings some gigabytes of CUDA.
step_torch() {
    local venv=target/python-torch
    python3 -m venv --clear "$venv" 2> /dev/null || { install_packages python3-venv && python3 -m venv --clear "$venv"; }
    "$venv/bin/pip" install --quiet 'maturin>=1.12,<2' pytest numpy torch
    install_python "$venv"
    (cd crates/mscclpp-python && "../../$venv/bin/python" -m pytest -q tests/test_{torch,torch_backend,torch_exit,torch_lane,deep_ep,collectives,fused,algorithms}.py)
}

# Checks licences, bans and sources of dependencies: deny.toml. The advisories would need GitHub.
step_deny() {
    command -v cargo-deny > /dev/null || cargo install --quiet --locked cargo-deny
    cargo deny --locked check licenses bans sources
}

# Builds each published crate from its package alone: the packages of the other crates stand in for the registry. Then builds the
# reference with the features that docs.rs shows, without a network.
step_package() {
    # The setting is that of the workspace, whose profiles are not packed, so that its builds of dependencies can be used.
    local -x CARGO_PROFILE_DEV_DEBUG=false
    cargo package --workspace --locked --exclude=xtask --exclude=mscclpp-{bootstrap-simulation,fake-{hip,ib},python,test-support}
    local crate features
    while read -r crate features; do
        RUSTDOCFLAGS="-D warnings" unshare --net --map-root-user \
            cargo doc --quiet --offline --locked --no-deps -p "$crate" ${features:+--features "$features"}
    done < <(cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    settings = (package["metadata"] or {}).get("docs", {}).get("rs")
    if settings: print(package["name"], ",".join(settings.get("features", [])))')
}

# Checks with the oldest Rust that the manifests promise, including tests and examples: the README's commands build them.
step_oldest() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    rustup toolchain install --profile minimal "$version"
    cargo "+$version" check --workspace --all-targets --locked --target-dir target/oldest
}

# Checks each feature of each crate alone, and none. `cuda` and `cudarc` need another feature that chooses a version of CUDA, so
# they do not build alone; nor does the benchmark program without a version. The step `verbs` checks `rdma-sys`.
step_features() {
    command -v cargo-hack > /dev/null || cargo install --quiet --locked cargo-hack
    cargo hack clippy --workspace --exclude mscclpp-bench --each-feature --exclude-features cuda,cudarc,default,rdma-sys \
        --exclude-all-features -- -D warnings
    local features
    for features in "bench --features hip" "bench --no-default-features --features cuda-13000" \
        "collectives --no-default-features --features cudarc,cuda-13000" "gpu --features cuda,cuda-13000"; do
        cargo clippy -p mscclpp-$features -- -D warnings
    done
}

# Checks that nothing breaks programs, unless the version allows it, since the last release: the last tag `v*`, or
# SEMVER_BASELINE.
step_semver() {
    local baseline=${SEMVER_BASELINE:-$(git describe --tags --abbrev=0 --match 'v*' 2> /dev/null || true)}
    [ -n "$baseline" ] || { echo "nothing was released yet, and SEMVER_BASELINE names no revision"; return; }
    command -v cargo-semver-checks > /dev/null || cargo install --quiet --locked cargo-semver-checks
    # The default features are checked, because not all features can be enabled together.
    cargo semver-checks check-release --baseline-rev "$baseline" --default-features \
        --workspace --exclude=xtask --exclude=mscclpp-{bench,bootstrap-simulation,fake-{hip,ib},nccl,python,test-support}
}

# Tests the Python package as it is released, in fresh environments.
step_wheels() {
    command -v c++ > /dev/null || install_packages g++
    bash ci/wheels.sh
    # There is no free-threaded interpreter for tests, so the package is only compiled for one.
    printf '%s\n' implementation=CPython version=3.14 shared=true abi3=false pointer_width=64 \
        build_flags=Py_GIL_DISABLED > target/free-threaded.txt
    PYO3_CONFIG_FILE=$PWD/target/free-threaded.txt cargo check --quiet -p mscclpp-python
}

# Tests the lock-free protocols, under every interleaving that loom tries.
step_loom() { cargo test -p mscclpp-core -p mscclpp-proxy --test loom --release; }

# Fuzzes the parsers of bytes from outside for a short time.
step_fuzz() { CARGO_PROFILE_RELEASE_OPT_LEVEL=1 fuzz 3; }
step_long_fuzz() { fuzz 600; }

# fuzz SECONDS: runs each target for that time, without cargo-fuzz, with its compiler flags except the unstable ones.
fuzz() {
    local host folder
    host=$(rustc -vV | sed -n 's/^host: //p')
    folder=$(realpath -m target/fuzz)
    # With a target, the flags are not those of build scripts.
    (cd ci/fuzz && CARGO_TARGET_DIR=$folder RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions" \
        cargo build --quiet --release --bins --target "$host")
    ls ci/fuzz/fuzz_targets | sed 's/\.rs$//' | (cd "$folder" && xargs -P "$(nproc)" -I TARGET bash -euc '
        mkdir -p corpus/TARGET
        said=$("$1/release/TARGET" corpus/TARGET -max_total_time="$2" -timeout=60 -rss_limit_mb=512 2>&1) ||
            { echo "$said"; echo "fuzzing TARGET failed"; exit 1; }
        echo "fuzzed TARGET: $(tail -n 1 <<< "$said")"' fuzz "$host" "$1")
}

# Simulates ten thousand jobs, in each of which something else goes wrong, the same each time. The long step has many new ones.
step_simulation() { MSCCLPP_SIMULATED_SEEDS=10000 simulated; }
step_long_simulation() { MSCCLPP_SIMULATED_NEW_SEEDS=500000 simulated; }
simulated() { cargo test -p mscclpp-bootstrap-simulation --release --test it; }

# Tests collectives bit by bit: every kind with every type, operation, protocol, count and place; 10^5 replays on ranks that
# are late.
step_collectives() {
    MSCCLPP_PLATFORM=sim cargo test -p mscclpp-collectives --release --test it -- --ignored
}

# Makes small and large writes over Ethernet for two minutes, and compares every byte. Lets a rank of experts come two
# minutes late.
step_soak() { cargo test -p mscclpp-ethernet -p mscclpp-ep --release --test it -- --ignored two_minutes; }

# Tests real verbs over soft RoCE, in virtual machines: one with two devices, and two that are joined.
step_rdma() {
    command -v qemu-system-x86_64 > /dev/null || install_packages qemu-system-x86
    # The machine is made of the current versions of packages.
    [ "$(id -u)" != 0 ] || apt-get -o Acquire::Retries=3 update -qq
    local smoke ports tests nl=$'\n'
    smoke=$(vm_script rdma-smoke.sh) ports=$(vm_script rdma-ports.sh) tests=$(vm_script rdma-tests.sh)
    # The packages are the same each time: with others, cargo would build most of them again.
    local vm="cargo xtask rdma-vm -p mscclpp-ib -p mscclpp -p mscclpp-bench --memory 2048"
    twice $vm --nodes 2 --shell-command "$smoke$nl$ports${nl}sh /tmp/rdma-smoke.sh && sh /tmp/rdma-ports.sh"
    twice $vm --nodes 2 --shell-command "$(vm_script rdma-nodes.sh)${nl}sh /tmp/rdma-nodes.sh"
    twice $vm --shell-command "$smoke$nl$ports$nl$tests${nl}sh /tmp/rdma-tests.sh" -- soft_roce conformance it
}

# Prints a command that writes a script of this folder to /tmp.
vm_script() { printf "cat > /tmp/%s <<'END'\n%s\nEND" "$1" "$(cat "ci/$1")"; }

# Runs a command, and once more if it fails: an emulated machine may stall for seconds when its node is busy, and then every
# peer in it looks lost.
twice() {
    "$@" || { echo "=== it failed; once more"; "$@"; }
}

install_packages() {
    [ "$(id -u)" = 0 ] || { echo "please install: $*"; return 1; }
    apt-get -o Acquire::Retries=3 update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -qq -y --no-install-recommends "$@"
}

[ $# -gt 0 ] && STEPS=("$@")
[ "${STEPS[*]}" != long ] || STEPS=("${LONG[@]}")
total=$SECONDS
for step in "${STEPS[@]}"; do
    echo "=== $step"
    start=$SECONDS
    # The step is not called in a condition, where `set -e` would have no effect inside it.
    "step_$step"
    echo "=== $step passed in $((SECONDS - start)) s"
done
echo "=== all ${#STEPS[@]} steps passed in $((SECONDS - total)) s"
