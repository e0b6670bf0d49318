# Runs in the virtual machine of `cargo xtask rdma-vm -p mscclpp-bench --nodes 2`: collectives of simulated devices on two nodes,
# over InfiniBand, with both kinds of signals. Results are compared bit by bit.
set -eu

export MSCCLPP_PLATFORM=sim
port=25600
for mode in host host-no-atomic; do
    export MSCCLPP_IBV_MODE=$mode
    for what in all-reduce all-gather reduce-scatter all-to-all; do
        port=$((port + 1))
        echo "$what, signals: $mode"
        timeout 200 bin-mscclpp-bench-mscclpp-bench "$what" --rank "$MSCCLPP_VM_NODE" --address 10.77.0.1:$port --between-nodes IB0 \
            -b 1K -e 256K --factor 16 --repeats 2 --warmup 1 --calls 4 --dtype f32
    done
done
