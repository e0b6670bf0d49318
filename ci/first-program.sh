#!/usr/bin/env bash
# Builds and runs the first program of README.md, exactly as it is printed there, in an empty folder beside a checkout that is
# called mscclpp.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$PWD" "$folder/mscclpp"
mkdir -p "$folder/first/src"

# block COMMENT: the code block of the README that follows this comment.
block() { sed -n "/<!-- ${1//\//\\/} -->/,/^\`\`\`\$/p" README.md | sed '1,2d;$d'; }
block "ci: Cargo.toml" > "$folder/first/Cargo.toml"
block "code: crates/mscclpp-collectives/examples/two_ranks.rs#program" > "$folder/first/src/main.rs"

# The lock file has the versions with which the workspace is tested.
cp Cargo.lock "$folder/first/Cargo.lock"
# The target folder is that of the programs in ci/consumers, which need most of the same crates.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cd "$folder/first"
CARGO_TARGET_DIR=$target/consumers cargo run --quiet | tee "$folder/output"
[ "$(grep -c 'every sum is 3$' "$folder/output")" = 2 ]
