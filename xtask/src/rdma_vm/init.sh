#!/bin/sh
# This is the first process of the machine. The kernel gives it the MSCCLPP_VM_* variables (machine.rs).
#
# ttyS0 is the kernel's log, to which this script's messages go as well; ttyS1 gets the output of the command; and ttyS2 gets
# "up" when the command starts and "exit CODE" when it has ended. If this script fails, so does the machine.
set -eu
trap 'echo "init.sh has failed; what it did last is above"; reboot -f' EXIT
export PATH=/programs:/usr/sbin:/usr/bin:/busybox HOME=/root TMPDIR=/tmp LANG=C.UTF-8
export MSCCLPP_PLATFORM=sim MSCCLPP_CACHE_DIR=/kernels

busybox chmod 755 /
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
busybox --install -s /busybox
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr

# The machine ends by itself after the time limit, whatever happens to the process that started it.
(sleep "$MSCCLPP_VM_LIMIT"; echo "the time limit has passed"; reboot -f) &

for module in /modules/*; do insmod "$module"; done

hostname "host$MSCCLPP_VM_NODE"
echo "127.0.0.1 localhost host$MSCCLPP_VM_NODE" > /etc/hosts
ip link set lo up
own=$((MSCCLPP_VM_NODE + 1))
if [ "$MSCCLPP_VM_NODES" = 1 ]; then
    # These are both ends of a cable. Packets between the two must go over the cable, although the kernel knows both addresses
    # as its own: a packet that comes in uses the table "local", and one that goes out the table of the end that it leaves.
    ip link add net0 address 52:54:00:77:00:01 type veth peer name net1 address 52:54:00:77:00:02
    ip addr add 10.77.0.1/24 dev net0
    ip addr add 10.77.0.2/24 dev net1
    ip addr add fd77::1/64 dev net0 nodad
    ip addr add fd77::2/64 dev net1 nodad
else
    ip link set eth0 name net0
    ip link set eth1 name net1
    ip addr add "10.77.0.$own/24" dev net0
    ip addr add "10.78.0.$own/24" dev net1
    ip addr add "fd77::$own/64" dev net0 nodad
    ip addr add "fd78::$own/64" dev net1 nodad
fi
for number in 0 1; do
    # Duplicate address detection is off, because it would take seconds.
    echo 0 > "/proc/sys/net/ipv6/conf/net$number/accept_dad"
    # This is room for a RoCE packet of 4096 bytes.
    ip link set "net$number" mtu 4200
    rdma link add "rxe$number" type rxe netdev "net$number"
    ip link set "net$number" up
done
if [ "$MSCCLPP_VM_NODES" = 1 ]; then
    for setting in all net0 net1; do
        echo 1 > "/proc/sys/net/ipv4/conf/$setting/accept_local"
        echo 0 > "/proc/sys/net/ipv4/conf/$setting/rp_filter"
    done
    for family in "-4 10.77.0." "-6 fd77::"; do
        set -- $family
        ip "$1" rule add pref 10 iif net0 lookup local
        ip "$1" rule add pref 10 iif net1 lookup local
        ip "$1" rule add pref 20 to "${2}2" oif net0 lookup 100
        ip "$1" rule add pref 20 to "${2}1" oif net1 lookup 101
        ip "$1" rule add pref 30 lookup local
        ip "$1" rule del pref 0
        ip "$1" route add "${2}2" dev net0 src "${2}1" table 100
        ip "$1" route add "${2}1" dev net1 src "${2}2" table 101
    done
fi
if [ "$MSCCLPP_VM_NODES" = 2 ]; then
    # The command starts when the other node is up, with its devices.
    for link in 77 78; do
        until ping -c 1 -W 1 "10.$link.0.$((3 - own))" > /dev/null; do sleep 0.1; done
    done
fi

ulimit -l unlimited
ulimit -c 0
cd /programs
mkfifo /run/output
# The output goes through a pipe, so that programs do not take the serial line for a terminal.
cat /run/output > /dev/ttyS1 &
writer=$!
stty -F /dev/ttyS1 raw -echo
echo up > /dev/ttyS2
code=0
sh /command > /run/output 2>&1 < /dev/null || code=$?
# Processes that the command left running may hold the pipe; then this does not wait for their last lines.
waits=0
while kill -0 "$writer" 2> /dev/null && [ "$waits" -lt 20 ]; do
    sleep 0.1
    waits=$((waits + 1))
done
# This waits until the line has sent everything.
stty -F /dev/ttyS1 raw
echo "exit $code" > /dev/ttyS2
# The process that started the machine ends it.
while true; do sleep 1000; done
