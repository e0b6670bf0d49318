#!/usr/bin/env bash
# The checks on a runner with GPUs: each step is named and timed, each process has a limit. The steps after a failed one run too.
#
#   ci/gpu.sh [STEP...]                from the sources, with Rust
#   ci/gpu.sh --packed PACK [STEP...]  from the output of `cargo xtask dist --pack`, without Rust: the file, or the folder in it
#
#   machine   lists the devices, and runs `mscclpp-bench doctor`
#   tests     all tests
#   python    the tests of the Python package, from a wheel
#   hold      the benchmarks: fails if a compared row has become slower
#   sanitize  compute-sanitizer over some of the tests
#   suites    others' suites with the library in place of NCCL, and with NCCL, from the sources in SUITES
#
# MSCCLPP_PLATFORM=sim runs them on simulated devices. Further variables:
#
#   GPU_OUT=FOLDER        the folder for logs and measurements   [target/gpu]
#   GPU_JOBS=N            test programs at a time                [1; on simulated devices a sixth of the cores]
#   HOLD_BASELINE=FILE    figures to compare, of the same devices [none: a baseline is written]
#   HOLD_AGAINST=PROGRAM  another mscclpp-bench to compare with, in turns
#   HOLD_TOLERANCE=N      percent                                [3]
#   HOLD_LIMIT=SECONDS    after which no row is measured again   [240]
#   GPU_WHEELS=FOLDER     wheels of the Python package and of what its tests need
#   SUITES=FOLDER         what docs/src/ci.md says                [none: they are left out]
#   SUITES_OPTIONS=WORDS  options of ci/suites, such as "--part 1/4 --seconds 500"
set -uo pipefail

fail() { echo "$*" >&2; exit 2; }

# Paths are relative to the folder in which the script was called.
for variable in HOLD_BASELINE HOLD_AGAINST GPU_WHEELS SUITES; do
    [ -z "${!variable:-}" ] || export "$variable=$(realpath -m "${!variable}")"
done
PACK=
if [ "${1:-}" = --packed ]; then
    PACK=$(realpath -e "${2:?a file or a folder}") || exit 2
    shift 2
else
    cd "$(dirname "$0")/.." || exit 2
fi
ALL=(machine tests python hold sanitize suites)
STEPS=("$@")
[ $# -gt 0 ] || STEPS=("${ALL[@]}")
for step in "${STEPS[@]}"; do
    case " ${ALL[*]} " in *" $step "*) ;; *) fail "there is no step $step, only: ${ALL[*]}" ;; esac
done
OUT=$(realpath -m "${GPU_OUT:-target/gpu}")
LOGS=$OUT/logs
mkdir -p "$LOGS" || exit 2
WORK=$(mktemp -d) || exit 2
passed=() failed=() left_out=()
# This runs even if the script is ended early.
ends() {
    echo "=== passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; left out: ${left_out[*]:-none}; $SECONDS s"
    tar -C "$OUT" -czf "$OUT/logs.tar.gz" logs
    rm -rf "$WORK"
}
trap ends EXIT
trap 'exit 143' TERM INT
CORES=$(nproc)
# Kernels of different processes do not run on a GPU at the same time: they take turns of milliseconds. So ranks that wait for each
# other take a hundred times longer if programs run side by side.
JOBS=1
[ "${MSCCLPP_PLATFORM:-}" != sim ] || JOBS=$((CORES / 6 > 1 ? CORES / 6 : 1))
JOBS=${GPU_JOBS:-$JOBS}
export WORK LOGS

# within SECONDS COMMAND...: runs a command, and ends it and its processes when the time is up or this script is ended. `timeout`
# and its command are a process group of their own, which a signal to this script's group does not reach.
within() {
    local code=0 process
    timeout --kill-after=20 "$@" &
    process=$!
    trap "kill $process; exit 143" TERM INT
    wait $process || code=$?
    trap 'exit 143' TERM INT
    return $code
}
export -f within

# logged NAME SECONDS COMMAND...: runs a command with its output in a log, prints a line with the result, and the end of the log
# if the command fails.
logged() {
    local name=$1 limit=$2 log start code=0
    log=$LOGS/${name//\//-}.log
    shift 2
    start=$(date +%s%N)
    within "$limit" "$@" > "$log" 2>&1 < /dev/null || code=$?
    local took=$((($(date +%s%N) - start) / 100000000))
    took=$((took / 10)).$((took % 10))
    case $code in
        0) echo "ok      $took s  $name" ;;
        124 | 137) echo "FAILED  $took s  $name: it did not end within $limit s"; tail -n 40 "$log" ;;
        *) echo "FAILED  $took s  $name: exit code $code"; tail -n 40 "$log" ;;
    esac
    # The result is 0 or 1, because the code 255 would make xargs stop.
    [ "$code" -eq 0 ]
}
export -f logged

# Finds the programs and tests: those of the pack, or those that are built here and would be packed.
files() {
    [ -z "${FILES:-}" ] || return 0
    if [ -z "$PACK" ]; then
        logged dist 3600 cargo xtask dist || return 1
        FILES=${CARGO_TARGET_DIR:-target}/dist/files
    elif [ -f "$PACK" ]; then
        mkdir "$WORK/pack" && tar -C "$WORK/pack" -xJf "$PACK" || return 1
        FILES=$WORK/pack/mscclpp
    else
        FILES=$PACK
    fi
    FILES=$(realpath -e "$FILES") || return 1
    [ -f "$FILES/manifest" ] || { echo "there is no manifest in $FILES"; return 1; }
    # Compiled kernels are used only from a folder to which nobody else can write. New ones are not added to the pack.
    cp -r "$FILES/cache" "$WORK/cache" && chmod -R go-w "$WORK/cache" || return 1
    export MSCCLPP_CACHE_DIR=$WORK/cache
}

# file KIND PACKAGE NAME: the path of a file in the manifest.
file() {
    local found
    found=$(awk -F '\t' -v kind="$1" -v package="$2" -v name="$3" '$1 == kind && $2 == package && $3 == name { print $4 }' "$FILES/manifest")
    [ -n "$found" ] && echo "$FILES/$found"
}

step_machine() {
    [ "${MSCCLPP_PLATFORM:-}" = sim ] ||
        within 60 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || return 1
    echo "$CORES cores, $JOBS test programs at a time, logs in $LOGS"
    files || return 1
    within 300 "$(file bin mscclpp-bench mscclpp-bench)" doctor
}

# Without a pack, cargo runs the tests. With one, several test programs run at a time, and then those that run alone.
step_tests() {
    if [ -z "$PACK" ]; then
        logged build 3600 cargo test --workspace --no-run || return 1
        logged tests 3600 cargo test --workspace --no-fail-fast
        return
    fi
    files || return 1
    local code=0
    # Cargo sets this by .cargo/config.toml. What is measured runs as users have it.
    local -x CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
    tests_that_run beside | (cd "$FILES" && xargs -r -P "$JOBS" -I {} bash -c 'logged {} 300 ./{}') || code=1
    tests_that_run alone | (cd "$FILES" && xargs -r -P 1 -I {} bash -c 'logged {} 600 ./{}') || code=1
    return $code
}

# The test programs of a kind, the largest first, because these take longest.
tests_that_run() {
    local name
    awk -F '\t' -v how="$1" '$1 == "test" && $5 == how { print $4 }' "$FILES/manifest" | while read -r name; do
        echo "$(stat -c %s "$FILES/$name") $name"
    done | sort -rn | cut -d ' ' -f 2
}

# Installs the wheels of the Python package and of what its tests need, once, for the steps that follow.
package() {
    local wheels site=$WORK/site
    [ ! -e "$site" ] || return 0
    if [ -n "$PACK" ]; then
        files || return 1
        wheels=${GPU_WHEELS:-$FILES/python/wheels}
    else
        wheels=${GPU_WHEELS:-}
        if [ -z "$wheels" ]; then
            wheels=$WORK/wheels
            within 300 python3 -m venv "$WORK/maturin" && within 300 "$WORK/maturin/bin/pip" install --quiet 'maturin>=1.12,<2' || return 1
            logged wheel 3600 "$WORK/maturin/bin/maturin" build --release -m crates/mscclpp-python/Cargo.toml --out "$wheels" || return 1
        fi
    fi
    compgen -G "$wheels/mscclpp-*.whl" > /dev/null || { echo "there is no wheel of the package in $wheels"; return $LEFT_OUT; }
    within 300 python3 -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl || { rm -rf "$site"; return 1; }
    export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
}

step_python() {
    local tests=crates/mscclpp-python
    package || return
    [ -z "$PACK" ] || tests=$FILES/python
    within 60 python3 -c 'import numpy, pytest' || return $LEFT_OUT
    # Each file runs as a program of its own, the largest first.
    (cd "$tests" && ls -S tests/test_*.py | xargs -r -P "$JOBS" -I {} bash -c 'file={}
        logged "$(basename "$file" .py)" 600 python3 -m pytest -q -p no:cacheprovider "$file"')
}

step_hold() {
    files || return 1
    local options=(--write "$OUT/measured.json")
    [ -z "${HOLD_BASELINE:-}" ] || options+=(--baseline "$HOLD_BASELINE")
    [ -z "${HOLD_AGAINST:-}" ] || options+=(--against "$HOLD_AGAINST")
    [ -z "${HOLD_TOLERANCE:-}" ] || options+=(--tolerance "$HOLD_TOLERANCE")
    [ -z "${HOLD_LIMIT:-}" ] || options+=(--limit "$HOLD_LIMIT")
    within 600 "$(file bin mscclpp-bench mscclpp-bench)" hold "${options[@]}"
}

# Programs without findings so far: tool, kind, package and name of the program, and its tests if not all. Tests with wrong memory
# accesses on purpose are not listed. racecheck skips bulk copies, which it does not understand (docs/src/development.md).
SANITIZED="
memcheck  example mscclpp gpu_ping_pong
memcheck  example mscclpp custom_kernel
memcheck  test mscclpp it arguments::
memcheck  test mscclpp it memory_channels::
memcheck  test mscclpp-collectives registered
memcheck  test mscclpp-collectives failing_calls
memcheck  test mscclpp-collectives rows one_rank two_ranks
memcheck  test mscclpp-ep it calls::random
racecheck example mscclpp gpu_ping_pong
racecheck example mscclpp custom_kernel
racecheck example mscclpp ring_all_gather
racecheck test mscclpp it blocks::
racecheck test mscclpp-collectives registered
racecheck test mscclpp-ep it calls::random
"
SANITIZER=${COMPUTE_SANITIZER:-$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v compute-sanitizer || echo compute-sanitizer)}

# Each program uses all GPUs.
step_sanitize() {
    command -v "$SANITIZER" > /dev/null || { echo "there is no $SANITIZER"; return $LEFT_OUT; }
    files || return 1
    export SANITIZER
    local tool kind package name tests program code=0
    while read -r tool kind package name tests; do
        [ -n "$tool" ] || continue
        program=$(file "$kind" "$package" "$name") || { echo "FAILED  $kind $package $name is not in the manifest" >&2; continue; }
        # A blank at the end would join two lines.
        echo "$tool $program${tests:+ $tests}"
    done <<< "$SANITIZED" > "$WORK/sanitized"
    # Errors of the driver's API are not reported: the library asks for kinds of memory that the driver may refuse.
    (cd "$FILES" && xargs -r -P "$JOBS" -L 1 bash -c 'tool=$0; leaves_out=()
        [ "$tool" != racecheck ] || leaves_out=(--kernel-name-exclude kernel_substring=bulk)
        logged "$tool-$(basename "$1")${2:+-${2//:/}}" 300 "$SANITIZER" --tool "$tool" --report-api-errors no "${leaves_out[@]}" \
            --target-processes all --error-exitcode 66 "$@"' < "$WORK/sanitized") || code=1
    [ "$(wc -l < "$WORK/sanitized")" -eq "$(grep -c . <<< "$SANITIZED")" ] || code=1
    return $code
}

# Without the Python package, the backend for PyTorch is skipped.
step_suites() {
    [ -n "${SUITES:-}" ] || { echo "skipped: SUITES names no folder"; return $LEFT_OUT; }
    files || return 1
    local suites=ci/suites library
    [ -z "$PACK" ] || suites=$FILES/suites
    library=$(file lib mscclpp-nccl nccl) || { echo "the library in place of NCCL is not in the manifest"; return 1; }
    package || true
    within 7200 python3 "$suites" run --folder "$SUITES" --ours "$library" --out "$OUT" ${SUITES_OPTIONS:-}
}

# The result of a step that cannot run here. It counts neither as passed nor as failed, and the summary says so.
LEFT_OUT=77
for step in "${STEPS[@]}"; do
    echo "=== $step"
    start=$SECONDS
    "step_$step"
    case $? in
        0) passed+=("$step"); echo "=== $step passed in $((SECONDS - start)) s" ;;
        "$LEFT_OUT") left_out+=("$step"); echo "=== $step LEFT OUT" ;;
        *) failed+=("$step"); echo "=== $step FAILED in $((SECONDS - start)) s" ;;
    esac
done
# If all steps were left out, nothing has been checked, and that is a failure.
[ ${#failed[@]} -eq 0 ] && [ ${#passed[@]} -gt 0 ]
