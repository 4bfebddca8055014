"""Finds dead links in the built documentation: python .ci/links.py [FOLDER], of target/docs if none is named

Every link and picture of a page that leads to a file must lead to one that is there, and to a heading that is there.
Links to other sites are left alone, so that the check needs no network.
"""

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and anchors of a page.

    Attributes:
        links: values of `href` and `src`, in their order.
        anchors: values of `id` and `name`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


read_page = cache(Page)


def pages_in(root: Path) -> list[Path]:
    """The pages of a folder, without the theme's own files."""
    return sorted(path for path in root.rglob("*.html") if "_static" not in path.parts)


def dead_links(root: Path) -> Iterator[str]:
    """One line for each dead link of the pages in a folder."""
    for path in pages_in(root):
        for link in read_page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{path.relative_to(root)}: {link} leads to no file"
            elif parts.fragment and target.suffix == ".html":
                anchors = read_page(target).anchors
                if unquote(parts.fragment) not in anchors:
                    yield f"{path.relative_to(root)}: {link} leads to no heading"


def main(folder: str = "target/docs") -> int:
    """Prints the dead links of a folder and how many pages were read; 1 if a link is dead or there is no page."""
    root = Path(folder).resolve()
    found = list(dead_links(root))
    pages = pages_in(root)
    links = sum(len(read_page(path).links) for path in pages)
    print("\n".join([*found, f"{len(pages)} pages, {links} links, {len(found)} dead"]))
    return bool(found) or not pages


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
