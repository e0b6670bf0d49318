#!/usr/bin/env bash
# Makes the files of a release, in target/release-files: the packages of the crates, the Python package, for each a list of its
# components, and the SHA-256 of all of them. Nothing is published.
#
#   ci/release.sh
set -euo pipefail
cd "$(dirname "$0")/.."

files=target/release-files
target=${CARGO_TARGET_DIR:-target}
[ -z "$(git status --porcelain)" ] || { echo "commit first: the files name a commit"; exit 1; }

bash ci/run.sh package wheels
rm -rf "$files"
mkdir -p "$files"
version=$(cargo metadata --format-version 1 --no-deps --locked |
    python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "mscclpp"))')
cp "$target"/package/*-"$version".crate target/wheels/dist/* "$files"
python3 ci/sbom.py "$files"
(cd "$files" && sha256sum -- * > SHA256SUMS)
echo "=== $files, at $(git rev-parse HEAD)"
cat "$files/SHA256SUMS"
