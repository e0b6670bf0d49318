# Runs in the virtual machine of `cargo xtask rdma-vm -p mscclpp`, with one node or two: kernels of simulated devices put to
# each other through port channels over InfiniBand, with both kinds of signals. With two nodes, also a mesh of two ranks on
# each: CUDA IPC within a node, InfiniBand between them, and memory that is registered for both.
set -eu

export MSCCLPP_PLATFORM=sim
rank() { timeout 100 example-mscclpp-bidir_port_channel 10.77.0.1:25505 "$1" 0 "$2"; }
mesh() { timeout 100 example-mscclpp-mesh_port_channels 10.77.0.1:25506 $((2 * MSCCLPP_VM_NODE + $1)) "$1" 4 IB0; }

for mode in host host-no-atomic; do
    export MSCCLPP_IBV_MODE=$mode
    echo "signals: $mode"
    if [ "$MSCCLPP_VM_NODES" = 2 ]; then
        rank "$MSCCLPP_VM_NODE" IB0
        mesh 0 &
        mesh 1
        wait $!
    else
        rank 0 IB0 &
        rank 1 IB1
        wait $!
    fi
done
