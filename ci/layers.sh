#!/usr/bin/env bash
# Checks which crate depends on which: the layers are optional, and a program gets only those that it asks for.
#
# - mscclpp-os stands alone, mscclpp-net depends on it alone, and mscclpp-bootstrap on these two;
# - core, and every crate that does not name CUDA, does not depend on CUDA; core and proxy depend on no network;
# - the crate of experts does not depend on that of collectives;
# - mscclpp without its features does not depend on CUDA, builds, and runs on simulated devices;
# - test support is in no program; the conformance suite depends on no transport, the test support on no crate of the workspace;
# - mscclpp with Ethernet alone does not depend on CUDA either, and connects CPUs;
# - a transport from outside passes the conformance suite, between processes too;
# - a program whose own cudarc is at another CUDA version builds with mscclpp's defaults off.
set -euo pipefail

cd "$(dirname "$0")/.."

# tree PACKAGE [OPTION...]: the names of all crates from which it is built, without itself.
tree() {
  local package=$1
  shift
  cargo tree --quiet --locked --package "$package" --edges normal,build --prefix none --format '{p}' "$@" |
    cut -d ' ' -f 1 | sort -u | sed "/^$package\$/d"
}

# refuse WHERE PATTERN: fails if a whole name on standard input matches the pattern.
refuse() {
  local found
  found=$(sed -nE "/^($2)\$/p")
  if [ -n "$found" ]; then
    echo "$1 must not depend on: ${found//$'\n'/ }" >&2
    exit 1
  fi
  echo "$1: ok"
}

tree mscclpp-os | refuse "mscclpp-os" 'mscclpp.*'
tree mscclpp-net | sed '/^mscclpp-os$/d' | refuse "mscclpp-net" 'mscclpp.*'
tree mscclpp-bootstrap | sed -E '/^mscclpp-(net|os)$/d' | refuse "mscclpp-bootstrap" 'mscclpp.*'
tree mscclpp-gpu-sys --features cuda-12040 | refuse "mscclpp-gpu-sys" 'mscclpp.*'
tree mscclpp-kernels | refuse "mscclpp-kernels" '.*'
tree mscclpp-ep | refuse "mscclpp-ep" 'mscclpp-collectives'
tree mscclpp-derive | refuse "mscclpp-derive" '.*'
tree mscclpp-gpu | refuse "mscclpp-gpu without features" 'mscclpp-(gpu-sys|net)|cudarc'
tree mscclpp-gpu --features hip | refuse "mscclpp-gpu for HIP alone" 'cudarc'
tree mscclpp-core | refuse "mscclpp-core" 'mscclpp-(bootstrap|net|cuda-ipc|gpu-sys)|mscclpp|cudarc'
tree mscclpp-conformance | refuse "mscclpp-conformance" 'mscclpp-(bootstrap|net|cuda-ipc|ethernet|ib|proxy|gpu-sys)|mscclpp|cudarc'
tree mscclpp-cuda-ipc --features cuda-12040 | refuse "mscclpp-cuda-ipc" 'mscclpp-bootstrap|mscclpp'
tree mscclpp-proxy | refuse "mscclpp-proxy" 'mscclpp-(bootstrap|net|cuda-ipc|ethernet|gpu-sys)|mscclpp|cudarc'
tree mscclpp-ethernet | refuse "mscclpp-ethernet" 'mscclpp-(bootstrap|cuda-ipc|gpu-sys|proxy)|mscclpp|cudarc'
tree mscclpp-ib | refuse "mscclpp-ib" 'mscclpp-(bootstrap|cuda-ipc|ethernet|gpu-sys|proxy)|mscclpp|cudarc'
tree mscclpp-verbs-sys | refuse "mscclpp-verbs-sys" 'mscclpp.*'
tree mscclpp --no-default-features --features ethernet |
  refuse "mscclpp with Ethernet alone" 'mscclpp-(gpu-sys|cuda-ipc)|cudarc'
tree mscclpp --no-default-features | refuse "mscclpp without features" 'mscclpp-(gpu-sys|cuda-ipc)|cudarc'
tree mscclpp --no-default-features --features hip | refuse "mscclpp for HIP alone" 'cudarc'
tree mscclpp | sed -n '/^cudarc$/p' | grep -q . || { echo "mscclpp with its defaults should have cudarc" >&2; exit 1; }

tree mscclpp-nccl | refuse "mscclpp-nccl" 'mscclpp-(bench|python|conformance|test-support|fake-hip)'
users=$(cargo tree --quiet --locked --workspace --edges normal,build --invert mscclpp-nccl --prefix none | sed -E "/^mscclpp-(nccl|python) /d")
[ -z "$users" ] || { echo "only mscclpp-python, whose wheel has it, may depend on mscclpp-nccl; it is used by: $users" >&2; exit 1; }

# Only tests may use the crates that tests share.
for shared in mscclpp-test-support mscclpp-conformance mscclpp-fake-ib mscclpp-bootstrap-simulation; do
  users=$(cargo tree --quiet --locked --workspace --edges normal,build --invert "$shared" --prefix none | sed "/^$shared /d")
  [ -z "$users" ] || { echo "only dev-dependencies may name $shared; it is used by: $users" >&2; exit 1; }
done
tree mscclpp-test-support | refuse "mscclpp-test-support" 'mscclpp.*'

cargo check --quiet --locked --package mscclpp --no-default-features --all-targets

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
for consumer in ci/consumers/*/; do
  echo "consumer $(basename "$consumer")"
  # The lock file has the versions with which the workspace is tested; cargo removes those that the consumer does not need.
  cp Cargo.lock "$consumer/Cargo.lock"
  (cd "$consumer" && CARGO_TARGET_DIR=$target/consumers cargo run --quiet)
  [ ! -d "$consumer/tests" ] || (cd "$consumer" && CARGO_TARGET_DIR=$target/consumers cargo test --quiet --test '*')
done
echo "layers hold"
