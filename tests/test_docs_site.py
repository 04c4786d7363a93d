"""The site's navigation, links and llms.txt. tests/packaging/test_site.py builds the site."""

import os
import re
from pathlib import Path

import pytest

from tools.docs_site import llms, pages, staging
from tools.docs_site.pages import DOCS, ROOT, navigation, problems, sources, summary, title

_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)")


def test_the_navigation_lists_every_page_once() -> None:
    assert problems() == []
    assert len(navigation()) > 120


@pytest.mark.parametrize(
    ("items", "found"),
    [
        (["index.md", "nowhere.md"], "nowhere.md of the navigation does not exist"),
        (["index.md", {"Again": ["index.md"]}], "index.md is listed twice"),
        ([{"Start": ["index.md"]}], "glossary.md is missing from the navigation"),
    ],
)
def test_problems_are_found(
    items: list[object], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "config", lambda: {"nav": items})
    assert found in problems()


def test_titles_differ_within_a_section() -> None:
    entries = [(titles, title(sources()[page])) for titles, page in navigation()]
    assert len({*entries}) == len(entries)


def test_the_index_of_the_guide_has_the_titles_of_its_pages() -> None:
    links = re.findall(r"^\| \[([^\]]+)\]\(([\w/-]+\.md)\)", (DOCS / "guide.md").read_text(), re.M)
    assert len(links) > 40
    assert [link for link in links if link[0] != title(DOCS / link[1])] == []


def test_llms_txt_lists_the_pages() -> None:
    assert llms.FILE.read_text() == llms.text(), "run: python -m tools.docs_site.llms"


def test_llms_txt_has_the_form_of_its_convention() -> None:
    lines = llms.text().splitlines()
    assert lines[0] == "# Stoker"
    assert lines[2].startswith("> ")
    kinds = {line[:3] for line in lines[3:] if line}
    assert kinds == {"## ", "- ["}
    listed = re.findall(r"^- \[.+?\]\((.+?)\)", llms.text(), re.M)
    assert sorted(listed) == sorted(sources())
    assert "- [Artifacts](guide/artifacts.md): Upload a model's files, replace them" in llms.text()


def test_summaries_are_sentences() -> None:
    about = {page: summary(path) for page, path in sources().items()}
    missing = [page for page, text in about.items() if not text]
    assert all(page.startswith(("performance/", "reliability/", "benchmarks")) for page in missing)
    assert [page for page, text in about.items() if "](" in text or "\n" in text] == []


def test_staged_links_lead_to_staged_files(tmp_path: Path) -> None:
    staging.stage(tmp_path / "pages")
    broken: list[str] = []
    for page in sources():
        copy = tmp_path / "pages" / page
        text = staging._FENCE.sub("", copy.read_text())
        for target in _LINK.findall(text):
            if not Path(os.path.normpath(copy.parent / target)).is_file():
                broken.append(f"{page}: {target}")
    assert broken == []
    assert (tmp_path / "pages" / "llms.txt").is_file()


def test_links_are_adapted_to_the_site() -> None:
    places = {path: page for page, path in sources().items()}
    readme = staging.adapted("[a](docs/tasks.md#calls) [b](LICENSE)", ROOT / "README.md", places)
    assert readme == "[a](tasks.md#calls) b"
    path = staging.adapted(
        "[a](../../bench/README.md)\n```\n[b](nowhere.md)\n```\n[c](chat.md)",
        DOCS / "performance" / "path.md",
        places,
    )
    assert path == "[a](../benchmarks.md)\n```\n[b](nowhere.md)\n```\n[c](chat.md)"
    with pytest.raises(FileNotFoundError, match=r"docs/tasks\.md links to nowhere\.md"):
        staging.adapted("[a](nowhere.md)", DOCS / "tasks.md", places)
