#!/usr/bin/env python3
"""Pastes code from source files into the Markdown, so that pages read the same on the web and in the built book.

A comment in front of a code block says what belongs into it: paths from the root, each with the anchor whose lines
are meant, or without one for the whole file.

    <!-- code: crates/mscclpp/examples/custom_kernel.rs#load -->
    ```rust,ignore
    ...
    ```

In the source, lines that end in `ANCHOR: load` and `ANCHOR_END: load` enclose the excerpt. Indentation that all of its
lines share is removed.

    python3 docs/paste.py           writes the code into the pages
    python3 docs/paste.py --check   fails if a page has other code than its source, and changes nothing
"""

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- code: ([^>\n]+?) -->\n(`{3,})[^\n]*\n)(.*?)(^\3$)", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"^<!-- code:", re.MULTILINE)
INCLUDE = re.compile(r"\{\{#(?:rustdoc_)?include")
ANCHOR = re.compile(r"\bANCHOR(?:_END)?: [\w-]+\s*$")


class Wrong(Exception):
    """Something in a page or a source that only a person can mend."""


def excerpt(source):
    """The lines that `path#anchor` or `path` names, without the lines that mark anchors."""
    path, _, anchor = source.partition("#")
    file = ROOT / path
    if not file.is_file():
        raise Wrong(f"{path} does not exist")
    lines = file.read_text().splitlines()
    if anchor:
        begin, end = (
            [i for i, line in enumerate(lines) if re.search(rf"\b{mark}: {re.escape(anchor)}\s*$", line)]
            for mark in ("ANCHOR", "ANCHOR_END")
        )
        if len(begin) != 1 or len(end) != 1 or end[0] < begin[0]:
            raise Wrong(f"{path} needs one line that ends in `ANCHOR: {anchor}`, and below it one `ANCHOR_END: {anchor}`")
        lines = lines[begin[0] + 1 : end[0]]
    lines = [line.rstrip() for line in lines if not ANCHOR.search(line)]
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"


def pasted(text):
    """The text of a page with the code that belongs into it."""
    if INCLUDE.search(text):
        raise Wrong("an include directive shows as it is on the web; put a `<!-- code: path#anchor -->` in front of a block")
    blocks = [match.start() for match in BLOCK.finditer(text)]
    for marker in MARKER.finditer(text):
        if marker.start() not in blocks:
            line = text.count("\n", 0, marker.start()) + 1
            raise Wrong(f"line {line}: no code block follows")
    return BLOCK.sub(lambda block: block[1] + "".join(map(excerpt, block[2].split())) + block[5], text)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    problems, blocks = [], 0
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        name = page.relative_to(ROOT)
        before = page.read_text()
        try:
            after = pasted(before)
        except Wrong as reason:
            problems.append(f"{name}: {reason}")
            continue
        blocks += len(MARKER.findall(before))
        if after == before:
            continue
        if check:
            pairs = zip(BLOCK.finditer(before), BLOCK.finditer(after))
            stale = [old[2] for old, new in pairs if old[4] != new[4]]
            problems.append(f"{name}: the code of {', '.join(stale)} is not what the source has; run `python3 docs/paste.py`")
        else:
            page.write_text(after)
            print(f"{name}: written")
    print("\n".join(problems) or f"{blocks} blocks of code are what their sources have")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
