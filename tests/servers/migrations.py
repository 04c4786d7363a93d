"""Schemas of other releases, made of this release's migration scripts and further ones."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.store import schema

SCRIPT = '''"""made for a test"""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None

COMPATIBLE_FROM = {compatible_from!r}


def upgrade() -> None:
{body}
'''
EXPANDING = """
op.add_column("accounts", sa.Column("hue", sa.String(length=8), nullable=True))
op.create_table(
    "paints",
    sa.Column("id", sa.String(length=40), primary_key=True),
    sa.Column("account_id", sa.String(40), sa.ForeignKey("accounts.id", ondelete="CASCADE")),
)
"""
CONTRACTING = """
op.drop_column("accounts", "hue")
"""


def add_script(
    folder: Path, revision: str, before: str, body: str, compatible_from: str | None = None
) -> None:
    """Adds a migration script to a folder of migrations."""
    indented = "\n".join(f"    {line}" if line else "" for line in body.strip().splitlines())
    script = SCRIPT.format(
        revision=revision, before=before, body=indented, compatible_from=compatible_from
    )
    (folder / "versions" / f"{revision}_made.py").write_text(script)


def copied(folder: Path, up_to: str = "9999") -> Path:
    """Copies this release's migrations, up to a revision."""
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for script in (folder / "versions").glob("0*.py"):
        if script.name[:4] > up_to:
            script.unlink()
    return folder


@contextlib.contextmanager
def knowing(folder: Path) -> Iterator[None]:
    """Makes this process know the migrations of a folder, as a release does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", folder)
        yield
