#!/usr/bin/env python3
"""Checks the book and the Markdown files at the root: links, the headings they point to, the list of pages,
the README's figures, and the page of Python names.

Prints what is wrong and exits with 1, or says that all is well. Links to other sites are not followed.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs/src"
PACKAGE = ROOT / "crates/mscclpp-python/python/mscclpp"
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


def names_in(module):
    """The names in a module's `__all__`, by the text of its file."""
    for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def methods_of(name, *places):
    """The public methods of a class, and of the classes that it is derived from: modules and names."""
    return {
        f"{name}.{method.name}"
        for module, of in places
        for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == of
        for method in node.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    }


def check_python_names():
    """The page of Python names has each name of the package once, and no other: those of `__all__` in each module."""
    page = BOOK / "python-names.md"
    listed = []
    for section in page.read_text().split("\n## ")[1:]:
        of = re.match(r"Methods of `(\w+)`", section)
        prefix = f"{of[1]}." if of else ""
        cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
        listed += [prefix + name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    offered = names_in("__init__")
    for file in PACKAGE.glob("[a-z]*.py"):
        offered |= {f"{file.stem}.{name}" for name in names_in(file.stem)}
    # Modules that are imported by themselves, and those whose functions stand in a module's line.
    offered = {name for name in offered if not name.startswith("numa.")} | {"torch", "nccl"}
    offered |= methods_of("Collectives", ("_collectives", "Collectives"), ("_on_device", "OnDevice"))
    offered |= methods_of("CommGroup", ("_group", "CommGroup"))
    where = page.relative_to(ROOT)
    problems.extend(f"{where}: {name} is missing" for name in sorted(offered - set(listed)))
    problems.extend(f"{where}: there is no {name}" for name in sorted(set(listed) - offered))
    problems.extend(f"{where}: {name} stands there twice" for name in sorted({n for n in listed if listed.count(n) > 1}))


pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "crates").glob("*/README.md")])
for page in pages:
    check_links(page)
check_summary()
check_figures()
check_python_names()
print("\n".join(problems) or f"{len(pages)} pages: all links lead somewhere")
sys.exit(bool(problems))
