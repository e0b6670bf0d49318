#!/usr/bin/env bash
# Makes the files of a release of the Python package, in target/wheels/dist: a source distribution, and the wheel for Linux on
# x86-64, glibc 2.28 and later, CPython 3.11 and later. The wheel is built from the source distribution. Then both are tested.
#
#   ci/wheels.sh          makes and tests them
#   ci/wheels.sh try      tests existing ones, with each Python that is found
#
# zig is the linker, because it has the symbols of old C libraries: with this machine's library, a newer one would be required.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=target/wheels
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$folder/tools/bin

prepare_tools() {
    [ -x "$tools/auditwheel" ] && return
    python3 -m venv --clear "$folder/tools"
    "$tools/pip" install --quiet 'maturin>=1.12,<2' 'ziglang>=0.15,<1' auditwheel
}

make() {
    local commit
    commit=$(git rev-parse --short=12 HEAD)
    rm -rf "$folder/dist" "$folder/source"
    mkdir -p "$folder/source"
    "$tools/maturin" sdist --manifest-path crates/mscclpp-python/Cargo.toml --out "$folder/dist"
    tar -C "$folder/source" --strip-components 1 -xzf "$folder"/dist/mscclpp-*.tar.gz
    # Cargo compares the times of files, and those in a source distribution are old.
    find "$folder/source" -exec touch {} +
    # The lock file is that of the workspace, from which cargo removes the crates that are not in the source distribution.
    (cd "$folder/source" && PATH=$PWD/../tools/bin:$PATH CARGO_TARGET_DIR=$target/wheels/build MSCCLPP_GIT_COMMIT=$commit maturin build --zig \
        --target x86_64-unknown-linux-gnu --compatibility manylinux_2_28 --out ../dist)
}

# Checks the wheel's content, and the symbols that it needs from the system.
inspect() {
    local wheel=$1 listed file said
    [[ $wheel == *-cp311-abi3-manylinux_2_28_x86_64.whl ]] || { echo "$wheel has another name than it should"; return 1; }
    listed=$("$tools/python" -m zipfile --list "$wheel")
    for file in licenses/LICENSE licenses/THIRD-PARTY-LICENSES include/mscclpp/memory_channel_device.hpp mscclpp/lib/libnccl.so.2 py.typed _mscclpp.pyi; do
        grep -q "$file" <<< "$listed" || { echo "$wheel lacks $file"; return 1; }
    done
    file=$(tar -tzf "$folder"/dist/mscclpp-*.tar.gz)
    grep -q THIRD-PARTY-LICENSES <<< "$file" || { echo "the source distribution lacks THIRD-PARTY-LICENSES"; return 1; }
    said=$("$tools/auditwheel" show "$wheel")
    # auditwheel names the oldest systems that have all needed symbols, which may be older than those that are promised.
    grep -qE 'manylinux_2_(5|12|17|24|26|27|28)_x86_64' <<< "$said" || { echo "$said"; return 1; }
    echo "$(basename "$wheel"): $(grep -oE 'manylinux_2_[0-9]+_x86_64' <<< "$said" | head -n 1) would do"
}

# try PYTHON FILE [OPTION...]: installs a file into a fresh environment, and uses it without a compiler, then with one.
try() {
    local python=$1 file=$2 venv=$folder/venv
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet "${@:3}" "$file"
    cp ci/wheel_user.py "$venv"
    (
        cd "$venv"
        # The program gets nothing of this machine but the environment of Python: not even a shell's commands.
        env -i PATH="$PWD/bin" HOME="$PWD" MSCCLPP_PLATFORM=sim MSCCLPP_CACHE_DIR="$PWD/cache" bin/python wheel_user.py without
        env -i PATH=/usr/bin:/bin HOME="$PWD" MSCCLPP_PLATFORM=sim MSCCLPP_CACHE_DIR="$PWD/cache" bin/python wheel_user.py with
    )
    echo "$(basename "$file") works with $("$venv/bin/python" --version)"
}

# The Pythons of this machine, from 3.11 on, that can make virtual environments; each version once.
pythons() {
    local python
    for python in $(compgen -c python3. | grep -E '^python3\.(1[1-9]|[2-9][0-9])$' | sort -Vu) "$HOME"/.pyenv/versions/3.*/bin/python3; do
        "$python" -c 'import ensurepip, sys; assert sys.version_info >= (3, 11); print(*sys.version_info[:2], sys.executable)' 2> /dev/null || true
    done | awk '!seen[$1, $2]++ { print $3 }'
}

mkdir -p "$folder"
prepare_tools
[ "${1:-}" = try ] || make
wheel=$(echo "$folder"/dist/*.whl)
inspect "$wheel"
found=$(pythons)
[ -n "$found" ] || { echo "there is no Python from 3.11 on"; exit 1; }
for python in $found; do try "$python" "$wheel"; done
# This builds from source, by pip, in the workspace's target folder, to test what a build needs; the wheel is the optimised build.
CARGO_TARGET_DIR=$target try "$(head -n 1 <<< "$found")" "$(echo "$folder"/dist/*.tar.gz)" --config-settings=build-args="--profile dev"
