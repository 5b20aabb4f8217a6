"""Follows every link of a built book: `book_links.py target/book`. Links to other sites are left out.

A link must lead to a file of the book, and its fragment to an element with that id.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the ids of its elements."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


book = Path(sys.argv[1]).resolve()
# print.html has all pages in one, whose links are those of the pages.
pages = {path: Page(path) for path in book.rglob("*.html") if path.name not in ("print.html", "404.html")}
followed, broken = 0, []
for path, page in pages.items():
    for link in sorted(page.links):
        url = urlsplit(link)
        if url.scheme or url.netloc:
            continue
        followed += 1
        target = (path.parent / unquote(url.path)).resolve() if url.path else path
        fragment = unquote(url.fragment)
        if not target.exists():
            broken.append(f"{path.relative_to(book)}: {link}: there is no such file")
        elif fragment and target in pages and fragment not in pages[target].ids:
            broken.append(f"{path.relative_to(book)}: {link}: there is no such heading")
for line in broken:
    print(line, file=sys.stderr)
print(f"{len(pages)} pages in {book}/index.html, {followed} links, {len(broken)} broken")
sys.exit(bool(broken) or followed == 0)
