"""`stoker files`: manages uploaded and generated files."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli import confirmation, output
from stoker.cli.call import TIMEOUT_S
from stoker.cli.confirmation import Yes
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.cli.progress import upload_progress
from stoker.client.client import ApiRequest, Retry, quoted
from stoker.client.file_upload import FILES, upload_file

app = typer.Typer(no_args_is_help=True, help="Manage uploaded and generated files.")

FileId = Annotated[str, typer.Argument(metavar="FILE_ID", help="File ID (file_…).")]


def _moment(seconds: int) -> str:
    return output.moment(datetime.fromtimestamp(seconds, UTC).isoformat())


FIELDS: Columns = {
    "id": lambda f: f["id"],
    "name": lambda f: f["filename"],
    "purpose": lambda f: f["purpose"],
    "size": lambda f: output.size(f["bytes"]),
    "created": lambda f: _moment(f["created_at"]),
    "expires": lambda f: _moment(f["expires_at"]) if f["expires_at"] else "never",
}


class UploadPurpose(StrEnum):
    BATCH = "batch"
    USER_DATA = "user_data"


@app.command()
def push(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="File to upload.")],
    purpose: Annotated[
        UploadPurpose, typer.Option(help="batch: input of a batch. user_data: any other file.")
    ] = UploadPurpose.USER_DATA,
    expires_after_h: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=720,
            help="Hours until the file expires. Default: 720 for batch, never for user_data.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload a file. A large file is sent in parts."""
    with upload_progress(source) as report:
        file = upload_file(
            client(ctx),
            source,
            purpose=purpose.value,
            expires_after_s=None if expires_after_h is None else round(expires_after_h * 3600),
            on_progress=report,
            retry=Retry(),
        )
    output.show_object(file, FIELDS, as_json=as_json)


@app.command("list")
def list_files(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 20,
    purpose: Annotated[
        str | None, typer.Option(help="Only files with this purpose, such as batch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List files that have not expired."""
    params = {} if purpose is None else {"purpose": purpose}
    rows = list(client(ctx).pages(FILES, limit, params=params))
    output.show_list(rows, FIELDS, as_json=as_json, none="No files yet.")


@app.command()
def show(ctx: typer.Context, file_id: FileId, as_json: AsJson = False) -> None:
    """Show a file's details."""
    output.show_object(client(ctx).get(f"{FILES}/{quoted(file_id)}"), FIELDS, as_json=as_json)


@app.command()
def download(
    ctx: typer.Context,
    file_id: FileId,
    target: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Path to write. Default: the file's own name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a file."""
    server = client(ctx)
    place = f"{FILES}/{quoted(file_id)}"
    known = server.get(place)
    # Keeps only the last part, so that the server cannot choose another folder.
    written = target or Path(Path(known["filename"]).name)
    request = ApiRequest(method="GET", path=f"{place}/content", timeout_s=TIMEOUT_S)
    server.download(request, written)
    output.show_done({**known, "file": str(written)}, f"Saved to {written}.", as_json=as_json)


@app.command()
def delete(ctx: typer.Context, file_id: FileId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a file before it expires."""
    answer = confirmation.delete(
        client(ctx),
        f"{FILES}/{quoted(file_id)}",
        lambda f: f"Delete file {file_id} ('{f['filename']}')?",
        yes=yes,
    )
    output.show_done(answer, f"Deleted {file_id}.", as_json=as_json)
