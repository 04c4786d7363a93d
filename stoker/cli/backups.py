"""`stoker backup` and `stoker restore`: save a data folder in one file, and restore it."""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.output import AsJson, Columns
from stoker.cli.progress import transfer_bar
from stoker.cli.settings import read_settings
from stoker.client.errors import StokerError, WrongUseError

if TYPE_CHECKING:
    from stoker.server.backups.archive import Manifest

DataDir = Annotated[
    Path | None, typer.Option(help="Data folder of the server. Default: STOKER_DATA_DIR.")
]

FIELDS: Columns = {
    "file": lambda b: b["file"],
    "size": lambda b: output.size(b["size"]),
    "artifacts": lambda b: b["artifacts"],
    "release": lambda b: b["release"],
    "has secret": lambda b: "yes" if b["has_secret"] else "no",
    "missing files": lambda b: len(b["missing"]) or "",
}


def backup(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="New file, or a folder for a file that is named after the time."
        ),
    ],
    *,
    without_secret: Annotated[
        bool,
        typer.Option("--without-secret", help="Leave out the server's secret and the key files."),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Save the data folder in one file. The server may run meanwhile."""
    from stoker.server.backups.archive import BackupError
    from stoker.server.backups.creating import create

    folder = _data_dir(data_dir)
    try:
        with _progress("Saving") as (begin, advance):
            made = create(
                folder, file, with_secret=not without_secret, begin=begin, advance=advance
            )
    except BackupError as error:
        raise StokerError(str(error)) from error
    answer = {
        "file": str(made.path),
        "size": made.size,
        "artifacts": made.artifacts,
        "missing": made.missing,
        **_described(made.manifest),
    }
    output.show_object(answer, FIELDS, as_json=as_json)
    if made.missing:
        output.say(
            f"Warning: files of models were already missing in {folder}, such as "
            f"{made.missing[0]}. Their models do not load. Upload them again.",
            style="yellow",
        )
    if not made.manifest.has_secret:
        output.say(
            "The backup has no secret. Save the secret separately: without it, sealed data is lost."
        )


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `stoker backup`.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty data folder."""
    from stoker.server.backups.archive import BackupError
    from stoker.server.backups.restoring import restore as restored

    folder = _data_dir(data_dir)
    try:
        with _progress("Restoring") as (begin, advance):
            manifest = restored(file, folder, begin=begin, advance=advance)
    except BackupError as error:
        raise StokerError(str(error)) from error
    answer = {"data_dir": str(folder), **_described(manifest)}
    message = (
        f"Restored the backup of {output.moment(manifest.created_at)} UTC. "
        f"Start the server: stoker serve --data-dir {folder}"
    )
    output.show_done(answer, message, as_json=as_json)


def _described(manifest: "Manifest") -> dict[str, Any]:
    fields = asdict(manifest)
    del fields["format"]
    return fields


def _data_dir(given: Path | None) -> Path:
    """Raises `WrongUseError` if the server's data is not in its data folder alone."""
    settings = read_settings(**({} if given is None else {"data_dir": given}))
    hint = "docs/guide/operation.md lists what to back up."
    if settings.database_url:
        raise WrongUseError(
            "This command needs the database in the data folder, and STOKER_DATABASE_URL names "
            "another one. Back it up with its own tools, such as pg_dump.",
            hint=hint,
        )
    if settings.blob_url:
        raise WrongUseError(
            "This command needs the files in the data folder, and STOKER_BLOB_URL names another "
            "place. Back it up with its own tools.",
            hint=hint,
        )
    return settings.data_dir.resolve()


@contextlib.contextmanager
def _progress(
    verb: str,
) -> Generator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Shows the progress on stderr. Yields functions for the total and for each step, in bytes."""
    with transfer_bar() as bar:
        task = bar.add_task(verb, total=None, visible=False)
        yield (
            lambda total: bar.update(task, total=total, visible=True),
            lambda count: bar.advance(task, count),
        )
