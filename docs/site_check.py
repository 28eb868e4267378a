"""Checks a built site: every link and anchor leads somewhere, and no page fetches anything from elsewhere.

``python -m docs.site_check .build/site`` prints the faults and ends with status 1 if there are any.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ASSETS = {"script": "src", "img": "src", "source": "src", "video": "src", "audio": "src", "iframe": "src", "link": "href"}
"""Elements that a browser fetches, and the attribute that says what."""
DIAGRAMS = "https://unpkg.com/mermaid"
"""What the theme fetches for an element of the class ``mermaid``."""
NOT_FETCHED = frozenset(("canonical", "next", "prev", "alternate", "author", "license"))
"""Kinds of ``link`` that only name a place."""
_FETCHED_BY_CSS = re.compile(r"""url\(\s*["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""")


class Page(HTMLParser):
    """The anchors, the links and the assets of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.assets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if "mermaid" in given.get("class", "").split():
            self.assets.append(DIAGRAMS)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ASSETS and given.get(ASSETS[tag]) and not NOT_FETCHED.intersection(given.get("rel", "").split()):
            self.assets.append(given[ASSETS[tag]])


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the site, one line for each fault."""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for name, page in pages.items():
        if name == "404.html":  # its links begin at the root of a server
            continue
        for asset in page.assets:
            if urlsplit(asset).netloc or urlsplit(asset).scheme not in ("", "data"):
                yield f"{name}: fetches {asset} from elsewhere"
            elif not asset.startswith("data:") and not (site / _place(name, asset)[0]).is_file():
                yield f"{name}: the asset {asset} is not there"
        for link in page.links:
            yield from _faults_of_link(site, pages, name, link)
    for path in sorted(site.rglob("*.css")):
        for found in _FETCHED_BY_CSS.findall(path.read_text()):
            yield f"{path.relative_to(site)}: fetches {''.join(found)} from elsewhere"


def _faults_of_link(site: Path, pages: dict[str, Page], name: str, link: str) -> Iterator[str]:
    if urlsplit(link).scheme or link.startswith("//"):
        return
    target, anchor = _place(name, link)
    if target in pages:
        if anchor not in pages[target].anchors:
            yield f"{name}: {link} names an anchor that {target} does not have"
    elif not (site / target).exists():
        yield f"{name}: {link} leads nowhere"


def _place(page: str, link: str) -> tuple[str, str]:
    """The file of the site that a link on a page leads to, and the anchor in it."""
    parts = urlsplit(link)
    path = unquote(parts.path)
    if not path:
        return page, unquote(parts.fragment)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    return f"{target}/index.html".removeprefix("./") if path.endswith(("/", ".")) else target, unquote(parts.fragment)


def main() -> int:
    site = Path(sys.argv[1])
    found = list(faults(site))
    for fault in found:
        print(fault)
    pages = [Page(path.read_text()) for path in site.rglob("*.html")]
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages)} links, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
