# Runs in the virtual machine of `cargo xtask rdma-vm` with one node: all tests over its two devices. A failed one is run once
# more: an emulated machine may stall for seconds when its node is busy, and then every peer in it looks lost.
set -eu

twice() {
    echo "=== $*"
    timeout 900 "$@" || { echo "=== it failed; once more"; timeout 900 "$@"; }
}

twice sh /tmp/rdma-smoke.sh
twice test-mscclpp-ib-soft_roce
# The case of all orders of dropping makes a thousand connections and takes minutes here; it runs over Ethernet instead.
twice test-mscclpp-ib-conformance devices_0_and_1 --skip both_sides
twice sh /tmp/rdma-ports.sh
twice test-mscclpp-bench-it adapters::
