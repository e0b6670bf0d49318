# Runs in the virtual machine of `cargo xtask rdma-vm`, with one node or two: messages whose content is checked, RDMA writes
# and RDMA atomics between two soft-RoCE devices, over each network link. Fails if one of these fails.
set -eu

[ "$(ls /sys/class/infiniband | wc -l)" = 2 ] || { echo "there should be two devices"; exit 1; }

# The commands of both ends: PROGRAM OPTION_FOR_THE_GID ARGUMENTS, on $device, with $gid.
server() { timeout 60 "$1" -d "$device" "$2" "$gid" $3; }
client() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        timeout 60 "$1" -d "$device" "$2" "$gid" $3 "$server" > /tmp/client 2>&1 && return
        # The server may not be listening yet.
        sleep 0.5
    done
    cat /tmp/client
    return 1
}

# Runs the two ends: with one node, on its two devices; with two, on the same device of each.
exchange() {
    if [ "$MSCCLPP_VM_NODES" = 1 ]; then
        device=rxe0 server "$@" > /tmp/server 2>&1 &
        # A server that is left would keep its port from the next attempt.
        device=rxe1 client "$@" || { wait $! || :; cat /tmp/server; return 1; }
        wait $! || { cat /tmp/server; return 1; }
    elif [ "$MSCCLPP_VM_NODE" = 0 ]; then
        server "$@" > /tmp/server 2>&1 || { cat /tmp/server; return 1; }
    else
        client "$@"
    fi
    echo "$1 over $device, GID $gid: passed"
}

server=10.77.0.1
for device in rxe0 rxe1; do
    # GID 1 is the IPv4 address of the interface, GID 2 its global IPv6 address.
    for gid in 1 2; do
        exchange ibv_rc_pingpong -g "-c -n 100"
    done
    exchange ib_write_bw -x "-s 65536 -n 100"
    exchange ib_atomic_bw -x "-n 100"
    # With one node, both devices are ends of one network link.
    [ "$MSCCLPP_VM_NODES" = 2 ] || break
done
