#!/usr/bin/env python3
"""Checks the book and the Markdown files at the root: links, the headings they point to, the list of pages, and the README's figures.

Prints what is wrong and exits with 1, or says that all is well. Links to other sites are not followed.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs/src"
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NUMBER = re.compile(r"\d[\d.]*\d|\d")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)

problems = []


def headings(page):
    """The ids that mdBook and GitHub give to the headings of a page."""
    text = FENCE.sub("", page.read_text())
    plain = (re.sub(r"[`*]", "", heading).lower() for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def check_links(page):
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            problems.append(f"{page.relative_to(ROOT)}: {target} does not exist")
        elif heading and heading not in headings(file):
            problems.append(f"{page.relative_to(ROOT)}: {file.name} has no heading for #{heading}")
        elif BOOK in page.parents and BOOK not in file.parents:
            problems.append(f"{page.relative_to(ROOT)}: {target} is outside the book")


def check_summary():
    listed = {(BOOK / target).resolve() for target in LINK.findall((BOOK / "SUMMARY.md").read_text())}
    for page in BOOK.rglob("*.md"):
        if page.name != "SUMMARY.md" and page not in listed:
            problems.append(f"{page.relative_to(ROOT)} is not in SUMMARY.md")


def check_figures():
    """Each number in the README's tables of figures stands on a page of figures."""
    pages = [ROOT / "docs/performance.md", *(ROOT / "docs/performance").glob("*.md")]
    measured = set(NUMBER.findall("".join(page.read_text() for page in pages)))
    section = (ROOT / "README.md").read_text().split("\n## How fast it is\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    problems.extend(
        f"README.md: {number} stands in no page of docs/performance: {row}"
        for row in rows
        for number in NUMBER.findall(row)
        if number not in measured
    )


pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "crates").glob("*/README.md")])
for page in pages:
    check_links(page)
check_summary()
check_figures()
print("\n".join(problems) or f"{len(pages)} pages: all links lead somewhere")
sys.exit(bool(problems))
