#!/usr/bin/env bash
# Builds and runs the first program of README.md, exactly as it is printed there, in an empty folder beside a checkout that is
# called mscclpp. The example first_program has the same text.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$PWD" "$folder/mscclpp"
mkdir -p "$folder/first/src"

# block FILE: the code block of the README that a comment marks with FILE.
block() { sed -n "/<!-- ci: ${1//\//\\/} -->/,/^\`\`\`\$/p" README.md | sed '1,2d;$d'; }
block Cargo.toml > "$folder/first/Cargo.toml"
block src/main.rs > "$folder/first/src/main.rs"

# The example is compared without its first lines, which describe it, and without the marks of the parts that the book shows.
tail -n +3 crates/mscclpp/examples/first_program.rs | grep -vE '^ *// ANCHOR(_END)?: ' | diff - "$folder/first/src/main.rs" ||
    { echo "README.md and examples/first_program.rs differ"; exit 1; }

# The lock file has the versions with which the workspace is tested.
cp Cargo.lock "$folder/first/Cargo.lock"
# The target folder is that of the programs in ci/consumers, which need the same crates.
cd "$folder/first"
CARGO_TARGET_DIR=$OLDPWD/target/consumers cargo run --quiet | tee "$folder/output"
[ "$(grep -c 'have arrived' "$folder/output")" = 2 ]
