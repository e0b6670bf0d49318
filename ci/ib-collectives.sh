# Runs in the virtual machine of `cargo xtask rdma-vm -p mscclpp-bench --pin --memory 3072`, with one node: the bandwidth of
# perftest, and an all_gather and an all_reduce of two ranks that count as two nodes, in turns, three times. Prints each
# figure, and the medians. perftest sends in one direction, and in both at once like the ranks of a collective: then it prints
# the sum of both, of which this takes half. Figures of one boot can be compared with each other, and with nothing else.
set -eu

bench=bin-mscclpp-bench-mscclpp-bench
export MSCCLPP_PLATFORM=sim MSCCLPP_IB_TIMEOUT=14
sizes=${SIZES:-"65536 262144 1048576 4194304 16777216"}
repeats=${REPEATS:-3}
figures=/tmp/figures
port=25600

# note WHAT SIZE MB/s: prints and records a figure.
note() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" | tee -a "$figures"; }

# perftest SIZE [OPTION...]: the bandwidth that ib_write_bw prints last, in MB/s, of writes of SIZE bytes. Its own MB has 1048576
# bytes.
perftest() {
    size=$1
    shift
    rounds=$((8388608 / size))
    [ $rounds -ge 6 ] || rounds=6
    timeout 60 ib_write_bw -F -d rxe0 -x 1 -s "$size" -n $rounds -t 16 "$@" > /tmp/server 2>&1 &
    for try in 1 2 3 4 5 6 7 8 9 10; do
        # The server may not be listening yet.
        sleep 0.3
        timeout 60 ib_write_bw -F -d rxe1 -x 1 -s "$size" -n $rounds -t 16 "$@" 10.77.0.1 > /tmp/client 2>&1 && break
    done
    wait $! || { cat /tmp/server /tmp/client; return 1; }
    grep -E '^ *[0-9]+ +[0-9]+ ' /tmp/client | tail -n 1 | awk '{ print 1.048576 * $4 }'
}

rank() {
    MSCCLPP_HOSTID="host $1" MSCCLPP_HCA_DEVICES="rxe$1" timeout 200 $bench "$what" --rank "$1" --gpu "$1" --address 127.0.0.1:$port --between-nodes IB0 \
        -b "$2" -e "$2" --repeats 1 --warmup 1 --dtype f32 ${OPTIONS:-}
}
# ours WORKLOAD BYTES: runs two ranks of a workload. BYTES is the size as nccl-tests count it.
ours() {
    what=$1
    port=$((port + 1))
    rank 1 "$2" > /tmp/other 2>&1 &
    rank 0 "$2" > /tmp/ours 2> /tmp/errors || { cat /tmp/ours /tmp/errors /tmp/other; return 1; }
    wait $!
    grep -v '^#' /tmp/ours | sed 's/^ *//; s/   */\t/g' | awk -F '\t' '{ print 1000 * $11 }'
}

: > "$figures"
repeat=0
while [ "$repeat" -lt "$repeats" ]; do
    repeat=$((repeat + 1))
    for size in $sizes; do
        # Each rank of a collective sends `size` bytes.
        one=$(perftest "$size")
        both=$(perftest "$size" -b)
        note "ib_write_bw, one way" "$size" "$one"
        note "ib_write_bw, each of both ways" "$size" "$(awk "BEGIN { print $both / 2 }")"
        bandwidth=$(ours all-gather $((2 * size)))
        note "all_gather, bus bandwidth" "$size" "$bandwidth"
        bandwidth=$(ours all-reduce "$size")
        note "all_reduce, bus bandwidth" "$size" "$bandwidth"
    done
done

echo "medians of $repeats, with minimum and maximum, MB/s:"
cut -f 1,2 "$figures" | sort -u | sort -t "$(printf '\t')" -k 2n -k 1 | while IFS="$(printf '\t')" read -r what size; do
    awk -F '\t' -v what="$what" -v size="$size" '$1 == what && $2 == size { print $3 }' "$figures" | sort -n > /tmp/sorted
    printf '%s B, %s: %s (%s to %s)\n' "$size" "$what" "$(sed -n "$(((repeats + 1) / 2))p" /tmp/sorted)" \
        "$(head -n 1 /tmp/sorted)" "$(tail -n 1 /tmp/sorted)"
done
for counter in completer_retry_err duplicate_request send_rnr_err rcvd_rnr_err; do
    cat /sys/class/infiniband/rxe[01]/ports/1/hw_counters/$counter | tr '\n' ' '
    echo "$counter"
done
