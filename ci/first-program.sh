#!/usr/bin/env bash
# Builds and runs the first program of README.md, its text and nothing else, in an empty folder beside a checkout that is
# called mscclpp. The example of that name is the same text.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$PWD" "$folder/mscclpp"
mkdir -p "$folder/first/src"

# block FILE: the code block of the README that is marked with it.
block() { sed -n "/<!-- ci: ${1//\//\\/} -->/,/^\`\`\`\$/p" README.md | sed '1,2d;$d'; }
block Cargo.toml > "$folder/first/Cargo.toml"
block src/main.rs > "$folder/first/src/main.rs"

# Below its first lines, which say what it is, and without the marks of what the book shows.
tail -n +3 crates/mscclpp/examples/first_program.rs | grep -vE '^ *// ANCHOR(_END)?: ' | diff - "$folder/first/src/main.rs" ||
    { echo "README.md and examples/first_program.rs differ"; exit 1; }

# The versions that the workspace is tested with.
cp Cargo.lock "$folder/first/Cargo.lock"
# With what the programs of ci/consumers need, too.
cd "$folder/first"
CARGO_TARGET_DIR=$OLDPWD/target/consumers cargo run --quiet | tee "$folder/output"
[ "$(grep -c 'have arrived' "$folder/output")" = 2 ]
