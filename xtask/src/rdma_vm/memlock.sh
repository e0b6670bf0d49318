#!/bin/sh
# memlock KIB COMMAND...: runs a command that may lock at most KIB KiB of memory. Root may lock any amount, so root loses
# that right.
limit=$1
shift
ulimit -l "$limit" || exit 1
exec capsh --drop=cap_ipc_lock --shell=/bin/sh -- -c 'exec "$0" "$@"' "$@"
