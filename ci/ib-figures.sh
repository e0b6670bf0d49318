# Runs in the virtual machine of `cargo xtask rdma-vm -p mscclpp-bench --pin`, with one node: perftest, bare verbs and the
# library in turns, five times. Prints each figure, and the medians. Figures of one boot can be compared with each other,
# and with nothing else.
set -eu

bench=bin-mscclpp-bench-mscclpp-bench
repeats=5
figures=/tmp/figures

# The last line of figures that a program of perftest prints.
perftest() {
    program=$1
    shift
    timeout 60 "$program" -F -d rxe0 -x 1 "$@" > /tmp/server 2>&1 &
    for try in 1 2 3 4 5 6 7 8 9 10; do
        # The server may not be listening yet.
        sleep 0.3
        timeout 60 "$program" -F -d rxe1 -x 1 "$@" 10.77.0.1 > /tmp/client 2>&1 && break
    done
    wait $! || { cat /tmp/server /tmp/client; return 1; }
    grep -E '^ *[0-9]+ +[0-9]+ ' /tmp/client | tail -n 1
}

# note WHAT VALUE: prints and records a figure.
note() { printf '%s\t%s\n' "$1" "$2" | tee -a "$figures"; }

# Runs a workload of mscclpp-bench, and prints the medians of its rows.
ours() {
    timeout 100 "$bench" "$@" --warmup 1 --repeats 1 > /tmp/ours || { cat /tmp/ours; return 1; }
    # The columns are two blanks apart, because a variant has single blanks.
    grep -v '^#' /tmp/ours | sed 's/^ *//; s/   */\t/g' | cut -f 2,3,7
}

: > "$figures"
repeat=0
while [ "$repeat" -lt "$repeats" ]; do
    repeat=$((repeat + 1))
    # ib_write_lat prints half a round trip, of which this is the typical one.
    half=$(perftest ib_write_lat -s 8 -n 1000 | awk '{ print $5 }')
    note "round trip of 8 B, us: ib_write_lat" "$(awk "BEGIN { print 2 * $half }")"
    ours ib-lat --iters 500 > /tmp/rows
    while IFS="$(printf '\t')" read -r _ variant us; do
        note "round trip of 8 B, us: $variant" "$us"
    done < /tmp/rows
    gigabits=$(perftest ib_write_bw -s 65536 -n 500 --report_gbits | awk '{ print $4 }')
    note "64 KiB puts, MB/s: ib_write_bw" "$(awk "BEGIN { print 125 * $gigabits }")"
    ours ib-bw --iters 500 > /tmp/rows
    while IFS="$(printf '\t')" read -r _ variant us; do
        note "64 KiB puts, MB/s: $variant" "$(awk "BEGIN { printf \"%.2f\", 65536 / $us }")"
    done < /tmp/rows
done

echo "medians of $repeats, with minimum and maximum:"
cut -f 1 "$figures" | sort -u | while IFS= read -r what; do
    awk -F '\t' -v what="$what" '$1 == what { print $2 }' "$figures" | sort -n > /tmp/sorted
    printf '%s: %s (%s to %s)\n' "$what" "$(sed -n "$(((repeats + 1) / 2))p" /tmp/sorted)" \
        "$(head -n 1 /tmp/sorted)" "$(tail -n 1 /tmp/sorted)"
done
for counter in send_rnr_err rcvd_rnr_err; do
    cat /sys/class/infiniband/rxe[01]/ports/1/hw_counters/$counter | tr '\n' ' '
    echo "$counter"
done
