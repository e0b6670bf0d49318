# Runs in the virtual machine of `cargo xtask rdma-vm` with one node: all that is tested over its two devices. What fails is run
# once more: an emulated machine may stall for seconds when its host is busy, and then every peer in it looks lost.
set -eu

twice() {
    echo "=== $*"
    timeout 900 "$@" || { echo "=== it failed; once more"; timeout 900 "$@"; }
}

twice sh /tmp/rdma-smoke.sh
twice test-mscclpp-ib-soft_roce
# Every order of dropping takes a thousand connections, and minutes here; Ethernet's run has it.
twice test-mscclpp-ib-conformance devices_0_and_1 --skip both_sides
twice sh /tmp/rdma-ports.sh
twice test-mscclpp-bench-adapters
