"""Hooks of mkdocs: pages from the root of the project, the list of decisions, and links that leave docs/.

The same files are read in the repository and on the site. In the repository a link may lead to any file; on the site, a link to a
file that has no page there becomes the name of that file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Documents of the root, and where they are on the site."""
DECISIONS = "decisions/index.md"
ICON = "pictures/icon.svg"
"""The icon of the gateway's page, which is that of the site too."""
BACKGROUND = ("decisions/", "changelog.md", "limits.md")
BACKGROUND_BOOST = 0.2
"""Weight of background pages in the search, because users who search for a word need a guide or a reference first."""
_LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.S | re.M)


def on_files(files: Files, config: Any, **_: Any) -> Files:  # the configuration of mkdocs has no type of its own
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, DECISIONS, content=decisions()))
    files.append(File.generated(config, ICON, abs_src_path=str(ROOT / "src/streamglot/web/icon.svg")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # a page of mkdocs
    if page.file.src_uri.startswith(BACKGROUND):
        page.meta.setdefault("search", {"boost": BACKGROUND_BOOST})
    return site_links(markdown, page.file.src_uri)


def decisions() -> str:
    """The list of decisions, from their headings."""
    lines = [
        "# Decisions",
        "",
        "Why things are as they are, one page for each decision that a reader of the code would ask about.",
        "",
    ]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join([*lines, ""])


def site_links(markdown: str, page: str) -> str:
    """The text of a page with links as they must be on the site. Code stays as it is."""
    pieces, place = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_linked(markdown[place : fence.start()], page), fence.group()]
        place = fence.end()
    return "".join([*pieces, _linked(markdown[place:], page)])


def _linked(text: str, page: str) -> str:
    return _LINK.sub(lambda found: _link(found, page), text)


def _link(found: re.Match[str], page: str) -> str:
    picture, words, target = found.groups()
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return found.group()
    source = next((source for source, known in PAGES.items() if known == page), None)
    folder = posixpath.dirname(source if source is not None else f"docs/{page}")
    place = posixpath.normpath(posixpath.join(folder, path))
    where = PAGES.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else "")
    if place == "docs/decisions":
        where = DECISIONS
    if not where:
        return f"{words} (`{place}`)" if place not in words else words
    return f"{picture}[{words}]({posixpath.relpath(where, posixpath.dirname(page) or '.')}{mark}{anchor})"
