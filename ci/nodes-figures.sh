#!/usr/bin/env bash
# Measures an all_reduce between two processes of one machine that count as two nodes: each has a GPU of its own (or a simulated
# device), and they reach each other by the network alone. With a NCCL, measures its socket transport too.
#
# ci/nodes-figures.sh BENCH [NCCL] [-- OPTIONS OF THE WORKLOAD]
#
# BENCH is the program mscclpp-bench, NCCL a file of libnccl.so.2; WHAT=all-gather, or another workload, in place of all-reduce.
# Prints on standard error what it is doing, and each row at once. After LIMIT seconds, 150 by default, it ends with an error that
# says what each rank was doing.
set -euo pipefail

bench=$1
shift
compare=()
if [ "${1:---}" != -- ]; then
    compare=(--compare "$1")
    shift
fi
[ "${1:-}" = -- ] && shift
options=("$@")
[ ${#options[@]} -gt 0 ] || options=(-b 1K -e 64M --factor 4 --repeats 5 --dtype f32)

what=${WHAT:-all-reduce}
limit=${LIMIT:-150}
address=127.0.0.1:$((20000 + RANDOM % 20000))
export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_IB_DISABLE=1
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} MSCCLPP_SOCKET_IFNAME=${MSCCLPP_SOCKET_IFNAME:-lo}

# The program ends by itself; the timeout is for one that hangs.
rank() {
    MSCCLPP_HOSTID="host $1" NCCL_HOSTID="host$1" timeout -k 5 $((limit + 15)) "$bench" "$what" \
        --rank "$1" --gpu "$1" --address "$address" --watch "$limit" "${compare[@]}" "${options[@]}"
}
rank 1 >/dev/null &
other=$!
trap 'kill "$other" 2>/dev/null || true' EXIT
rank 0
wait "$other"
trap - EXIT
