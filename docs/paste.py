#!/usr/bin/env python3
"""Pastes code and text from source files into the Markdown, so that pages read the same on the web and in the built book,
and each fact has one place where it is changed.

A comment in front of a code block says what belongs into it: paths from the root, each with the anchor whose lines
are meant, or without one for the whole file.

    <!-- code: crates/mscclpp/examples/custom_kernel.rs#load -->
    ```rust,ignore
    ...
    ```

In the source, lines that end in `ANCHOR: load` and `ANCHOR_END: load` enclose the excerpt. Indentation that all of its
lines share is removed. Text, such as a table, is pasted from another page or from a comment of the documentation:

    <!-- text: crates/mscclpp/src/lib.rs#features -->
    ...
    <!-- end of text -->

    python3 docs/paste.py           writes code and text into the pages
    python3 docs/paste.py --check   fails if a page has something else than its sources, and changes nothing
"""

import os
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"^(<!-- code: ([^>\n]+?) -->\n(`{3,})[^\n]*\n)(.*?)(^\3$)", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^(<!-- text: (\S+) -->\n)(.*?)(^<!-- end of text -->$)", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"^<!-- (?:code|text): ", re.MULTILINE)
INCLUDE = re.compile(r"\{\{#(?:rustdoc_)?include")
ANCHOR = re.compile(r"\bANCHOR(?:_END)?: [\w-]+(?: -->)?\s*$")
DOC_COMMENT = re.compile(r"^\s*//[/!] ?", re.MULTILINE)
# A link to an item, which only rustdoc follows, and one to a file.
ITEM_LINK = re.compile(r"\[(`[^`\]]+`)\](?:\([^)/]*\))?(?!\()")
FILE_LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")


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
            [i for i, line in enumerate(lines) if re.search(rf"\b{mark}: {re.escape(anchor)}(?: -->)?\s*$", line)]
            for mark in ("ANCHOR", "ANCHOR_END")
        )
        if len(begin) != 1 or len(end) != 1 or end[0] < begin[0]:
            raise Wrong(
                f"{path} needs one line that ends in `ANCHOR: {anchor}`, and below it one `ANCHOR_END: {anchor}`"
            )
        lines = lines[begin[0] + 1 : end[0]]
    lines = [line.rstrip() for line in lines if not ANCHOR.search(line)]
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"


def prose(source, page):
    """An excerpt of text: of a page, whose links are made to lead somewhere from here, or of comments for rustdoc."""
    path = source.partition("#")[0]
    text = excerpt(source)
    if not path.endswith(".md"):
        text = DOC_COMMENT.sub("", text)
        return ITEM_LINK.sub(r"\1", text)
    here = (ROOT / path).parent

    def from_here(link):
        return "](" + os.path.relpath(here / link[1], page.parent)

    return FILE_LINK.sub(from_here, text)


def pasted(text, page):
    """The text of a page with what belongs into it."""
    if INCLUDE.search(text):
        raise Wrong(
            "an include directive shows as it is on the web; put a `<!-- code: path#anchor -->` in front of a block"
        )
    found = [match.start() for kind in (CODE, TEXT) for match in kind.finditer(text)]
    for marker in MARKER.finditer(text):
        if marker.start() not in found:
            line = text.count("\n", 0, marker.start()) + 1
            raise Wrong(f"line {line}: nothing follows into which to paste")
    text = CODE.sub(lambda block: block[1] + "\n".join(map(excerpt, block[2].split())) + block[5], text)
    return TEXT.sub(lambda block: block[1] + prose(block[2], page) + block[4], text)


def sources_that_differ(before, after):
    """The sources of the blocks that are not the same in both."""
    pairs = [pair for kind in (CODE, TEXT) for pair in zip(kind.finditer(before), kind.finditer(after))]
    return ", ".join(old[2] for old, new in pairs if old[0] != new[0])


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    problems, blocks = [], 0
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "crates").glob("*/README.md")]):
        name = page.relative_to(ROOT)
        before = page.read_text()
        try:
            after = pasted(before, page)
        except Wrong as reason:
            problems.append(f"{name}: {reason}")
            continue
        blocks += len(MARKER.findall(before))
        if after != before and check:
            stale = sources_that_differ(before, after)
            problems.append(
                f"{name}: what was pasted of {stale} is not what stands there now; run `python3 docs/paste.py`"
            )
        elif after != before:
            page.write_text(after)
            print(f"{name}: written")
    print("\n".join(problems) or f"{blocks} blocks are what their sources have")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
