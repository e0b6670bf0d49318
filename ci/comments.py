#!/usr/bin/env python3
"""Checks that comments follow the rules of CONTRIBUTING.md, section Comments.

    ci/comments.py [PATH...]    all sources that git does not ignore, or those under PATH

A doc comment begins with its subject, no comment quotes a figure of speed, a machine or a date, and no line of a comment is longer
than 130 characters.
"""

import re
import subprocess
import sys

LONGEST = 130
NO_SUBJECT = {"Of", "As", "By", "That", "What", "Whose", "It"}
# A doc comment that begins with one of these needs a whole sentence behind it.
NEEDS_A_SENTENCE = set(
    "In On At For From To With Without If When Where Because So Also But And Or Not Such Then These They Behind "
    "Between Among Its Until Before After".split()
)
FEWEST_WORDS = 6
FIGURE = re.compile(r"\d ?(GB/s|GiB/s|MB/s|Gb/s)\b|\d[.\d]* (us|ns)\b|\b[AH][12]00\b|\b20\d\d-\d\d-\d\d\b")
# Quoted examples of output and links are no claims about speed.
QUOTED = re.compile(r"`[^`]*`")
DOC = re.compile(r"\s*(///|//!)(?:\s+(.*))?$")
COMMENT = re.compile(r"^\s*(?:///|//!|//|#(?!\[|!\[|include|define|if|el|end|pragma))\s(.*)$|^\s*\S.*\s//\s(.*)$")
PYTHON_DOC = re.compile(r'\s*[rbf]?"""(\S.*)$')


def main():
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", *sys.argv[1:]], text=True).split()
    found = [
        f"{file}:{number}: {why}: {line.strip()[:100]}"
        for file in files
        if re.search(r"\.(rs|py|pyi|hpp|h|cu)$", file) and "bindings" not in file and file != "ci/comments.py"
        for number, line, why in faults(file, open(file, encoding="utf-8").read().split("\n"))
    ]
    print("\n".join(found))
    print(f"{len(found)} comments to rewrite")
    return 1 if found else 0


def faults(file, lines):
    """Yields number, line and reason of each comment of a file that breaks a rule."""
    previous_is_doc = False
    for index, line in enumerate(lines):
        doc = DOC.match(line) or (file.endswith((".py", ".pyi")) and PYTHON_DOC.match(line))
        if doc and not previous_is_doc and doc.group(doc.lastindex or 0):
            sentence = first_sentence(doc.group(doc.lastindex), lines[index + 1 :])
            first = sentence.split()[0]
            if first in NO_SUBJECT or (first in NEEDS_A_SENTENCE and len(sentence.split()) < FEWEST_WORDS):
                yield index + 1, line, "no subject"
        previous_is_doc = bool(DOC.match(line))
        comment = COMMENT.match(line)
        if comment:
            text = QUOTED.sub("", comment.group(1) or comment.group(2) or "")
            if FIGURE.search(text):
                yield index + 1, line, "a figure, machine or date"
            if len(line) > LONGEST:
                yield index + 1, line, f"{len(line)} characters"


def first_sentence(text, following):
    for line in following:
        more = DOC.match(line)
        if re.search(r"[.:;](\s|$)", text) or not (more and more.group(2)):
            break
        text += " " + more.group(2)
    return re.split(r"(?<=[.:;])\s", text)[0]


if __name__ == "__main__":
    sys.exit(main())
