"""The site builds without a warning, its links and anchors lead somewhere, and no page fetches anything from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.reference import configuration, errors, http_api, python_api
from docs.site_check import faults
from docs.site_hooks import site_links

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
PICTURES = "docs/pictures/"
"""Made by a browser and not in every tree: links to them are checked where the folder is."""
README_LINES = 150


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


def test_links_and_anchors_of_the_site_lead_somewhere_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    assert list(faults(site)) == []


def test_every_document_has_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(document) for document in documents if not (site / document).is_file()] == []
    for page in ("architecture.html", "contributing/index.html", "security.html", "changelog.html", "decisions/index.html"):
        assert (site / page).is_file()


def test_the_site_can_be_searched(site: Path) -> None:
    assert "honest endings" in (site / "search" / "search_index.json").read_text().lower()


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_between_the_files_of_the_project_lead_somewhere(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.S | re.M)
    targets = {target.partition("#")[0] for target in LINK.findall(text) if ":" not in target}
    if not (ROOT / PICTURES).is_dir():
        targets = {target for target in targets if not target.startswith(PICTURES)}
    assert [target for target in sorted(targets) if target and not (ROOT / target).exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">x</a>', "gone.html leads nowhere"),
        ('<a href="other.html#gone">x</a>', "names an anchor that other.html does not have"),
        ('<a href="#gone">x</a>', "names an anchor that index.html does not have"),
        ('<script src="https://cdn.example/x.js"></script>', "fetches https://cdn.example/x.js from elsewhere"),
        ('<img src="//cdn.example/x.png">', "fetches //cdn.example/x.png from elsewhere"),
        ('<img src="gone.png">', "the asset gone.png is not there"),
        ('<pre class="mermaid">a</pre>', "fetches https://unpkg.com/mermaid from elsewhere"),
    ],
)
def test_a_fault_of_a_page_is_found(tmp_path: Path, body: str, fault: str) -> None:
    (tmp_path / "index.html").write_text(f'<h1 id="top">x</h1><a href="other.html#there">x</a><a href="#top">x</a>{body}')
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1><a href="index.html">x</a><a href="https://example.com">x</a>')
    [found] = faults(tmp_path)
    assert fault in found


def test_a_fault_of_a_style_sheet_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text("a { src: url('https://fonts.example/x.woff') } b { src: url(data:x) }")
    assert list(faults(tmp_path)) == ["x.css: fetches https://fonts.example/x.woff from elsewhere"]


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("library.md", "[x](dialects.md#a)", "[x](dialects.md#a)"),
        ("library.md", "[x](../src/streamglot/stages/stage.py)", "x (`src/streamglot/stages/stage.py`)"),
        ("architecture.md", "[x](docs/store.md#keys)", "[x](store.md#keys)"),
        ("guides/codex.md", "[x](../../ARCHITECTURE.md)", "[x](../architecture.md)"),
        ("contributing/index.md", "[x](ARCHITECTURE.md)", "[x](../architecture.md)"),
        ("contributing/index.md", "[x](docs/contributing/policy.md)", "[x](policy.md)"),
        ("library.md", "[x](https://example.com/a.md)", "[x](https://example.com/a.md)"),
        ("library.md", "```\n[x](../src/a.py)\n```", "```\n[x](../src/a.py)\n```"),
    ],
)
def test_links_are_those_of_the_site(page: str, link: str, on_the_site: str) -> None:
    assert site_links(link, page) == on_the_site


def test_every_setting_has_a_meaning() -> None:
    assert configuration.undescribed() == [], "say it in the docstring of the struct, or in docs/reference/configuration.py"


def test_every_error_has_a_cause_and_a_remedy() -> None:
    assert errors.undescribed() == [], "add it to docs/reference/errors.py"


def test_every_header_has_a_meaning() -> None:
    assert http_api.undescribed() == [], "add it to docs/reference/http_api.py"


def test_every_public_name_has_a_subject() -> None:
    assert "More" not in python_api.subjects(), "add it to docs/reference/python_api.py"
