"""Documentation is tested: a setting, an error or a route that the docs do not name fails here."""

import re
from pathlib import Path

import pytest

from stoker import errors
from stoker.config import Settings
from stoker.tasks.registry import TASKS

DOCS = Path(__file__).parents[1] / "docs"
README = Path(__file__).parents[1] / "README.md"


def settings_table() -> str:
    """docs/settings.md as it must be: `python -m tests.test_docs` writes it."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default is None else f"`{default}`"
        rows.append(f"| `STOKER_{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(
        [
            "# Settings",
            "",
            "Read from the environment, or from `.env` in the working folder. Lists are JSON.",
            "",
            *rows,
            "",
        ]
    )


def error_classes() -> list[type[errors.StokerError]]:
    return errors.StokerError.__subclasses__()


def test_settings_are_listed() -> None:
    assert (DOCS / "settings.md").read_text() == settings_table()


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_errors_are_listed(error: type[errors.StokerError]) -> None:
    text = (DOCS / "errors.md").read_text()
    assert re.search(rf"\| {error.status} \| `{error.type}` \|.*`{error.code}`", text), error


def test_codes_are_listed() -> None:
    """Every code that is raised anywhere in the code."""
    text = (DOCS / "errors.md").read_text()
    source = "\n".join(path.read_text() for path in Path(errors.__file__).parent.rglob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', source))
    assert codes
    assert [code for code in sorted(codes) if f"`{code}`" not in text] == []


def test_tasks_are_listed() -> None:
    for text in (README.read_text(), (DOCS / "guide.md").read_text()):
        assert [task.path for task in TASKS.values() if task.path not in text] == []


def test_links_lead_somewhere() -> None:
    for page in (README, *DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings_table())
