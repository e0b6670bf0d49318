#!/usr/bin/env python3
"""Checks a site that was built: each link and picture of each page leads to a file of it, and to a heading that is there.

    python3 docs/check_site.py target/site

Prints what is wrong and exits with 1, or says that all is well. Links to other sites are not followed. In the reference, rustdoc
has checked what it made of the documentation; of its own pages, files are looked for, and headings in the book alone.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


# Of the documentation of tracing, which rustdoc repeats.
REPEATED = {"dispatcher#setting-the-default-subscriber"}


class Page(HTMLParser):
    """The ids of a page, and where it leads."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.links.append(value)


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1], "index.html").is_file():
        sys.exit(__doc__)
    site = Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text(errors="replace")) for path in sorted(site.rglob("*.html"))}
    problems, links = [], 0
    for path, page in pages.items():
        in_book = "reference" not in path.relative_to(site).parts
        # It is served for addresses of any depth, so its links begin at the root.
        base = site if path.name == "404.html" else path.parent
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc or link.startswith("data:"):
                continue
            # Scripts that rustdoc's pages load if they are there.
            if not in_book and (link in REPEATED or "trait.impl/" in link or "type.impl/" in link):
                continue
            links += 1
            target = (base / unquote(url.path).lstrip("/" if base == site else "")).resolve() if url.path else path
            if target.is_dir():
                target = target / "index.html"
            where = f"{path.relative_to(site)}: {link}"
            if site not in target.parents or not target.is_file():
                problems.append(f"{where} does not exist")
            elif in_book and url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
                problems.append(f"{where}: there is no such heading")
    print("\n".join(problems) or f"{len(pages)} pages: all {links} links within the site lead somewhere")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
