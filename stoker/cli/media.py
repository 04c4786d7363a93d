"""`stoker image`, `speak` and `transcribe`: generate images and speech, transcribe audio."""

import base64
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.call import TIMEOUT_S, Model, Parameters, parsed_parameters
from stoker.cli.context import client
from stoker.cli.output import AsJson
from stoker.client.client import ApiRequest, JsonObject
from stoker.client.errors import WrongUseError
from stoker.client.media import TRANSCRIPTIONS

IMAGES, EDITS = "/v1/images/generations", "/v1/images/edits"
SPEECH = "/v1/audio/speech"

_IMAGE_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_SOUND_FORMATS = {f".{name}": name for name in ("mp3", "opus", "aac", "flac", "wav", "pcm")}


def image(
    ctx: typer.Context,
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Prompt. Some models need none."),
    ] = None,
    *,
    target: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Path to write. Several images get numbered names. Default: image.png, or "
            "edited.png with --edit.",
        ),
    ] = None,
    edited: Annotated[
        Path | None, typer.Option("--edit", exists=True, dir_okay=False, help="Image to edit.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="With --edit: mask of the area to edit."),
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Number of images.")] = 1,
    parameters: Parameters = None,
    as_json: AsJson = False,
) -> None:
    """Generate or edit images and save them to files."""
    target = target or Path("edited.png" if edited else "image.png")
    body: JsonObject = {
        "model": model,
        "n": count,
        "output_format": _format(target, _IMAGE_FORMATS),
        "response_format": "b64_json",
        **({"prompt": prompt} if prompt is not None else {}),
        **parsed_parameters(parameters or []),
    }
    if mask and not edited:
        raise WrongUseError("--mask requires --edit.")
    files = [(name, path) for name, path in (("image", edited), ("mask", mask)) if path]
    path = EDITS if edited else IMAGES
    request = ApiRequest(method="POST", path=path, json=body, files=files, timeout_s=TIMEOUT_S)
    with output.spinner(f"{model} generating …"):
        answer = client(ctx).json(request)
    drawn: list[dict[str, str]] = answer["data"]
    targets = [_numbered(target, at, len(drawn)) for at in range(len(drawn))]
    for image_object, place in zip(drawn, targets, strict=True):
        place.write_bytes(base64.b64decode(image_object["b64_json"]))
    _show_files(targets, as_json=as_json)


def speak(
    ctx: typer.Context,
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to speak.")],
    *,
    target: Annotated[
        Path, typer.Option("-o", "--output", help="Path to write, or - for stdout (MP3).")
    ] = Path("speech.mp3"),
    voice: Annotated[str, typer.Option(help="Voice of the model.")] = "default",
    parameters: Parameters = None,
    as_json: AsJson = False,
) -> None:
    """Convert text to speech and save it to a file."""
    to_stdout = str(target) == "-"
    body: JsonObject = {
        "model": model,
        "input": text,
        "voice": voice,
        "response_format": "mp3" if to_stdout else _format(target, _SOUND_FORMATS),
        **parsed_parameters(parameters or []),
    }
    request = ApiRequest(method="POST", path=SPEECH, json=body, timeout_s=TIMEOUT_S)
    with output.spinner(f"{model} generating …"):
        client(ctx).download(request, None if to_stdout else target)
    if not to_stdout:
        _show_files([target], as_json=as_json)


def transcribe(
    ctx: typer.Context,
    model: Model,
    recording: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="Audio or video file."),
    ],
    *,
    form: Annotated[
        str, typer.Option("--format", help="Output format: text, srt, vtt, json or verbose_json.")
    ] = "text",
    parameters: Parameters = None,
) -> None:
    """Transcribe a recording."""
    body: JsonObject = {
        "model": model,
        "response_format": form,
        **parsed_parameters(parameters or []),
    }
    request = ApiRequest(
        method="POST",
        path=TRANSCRIPTIONS,
        json=body,
        files=[("file", recording)],
        timeout_s=TIMEOUT_S,
    )
    with output.spinner(f"{model} transcribing …"):
        text = client(ctx).text(request)
    output.write(text if text.endswith("\n") else f"{text}\n")


def _format(target: Path, formats: dict[str, str]) -> str:
    """Returns the format for a file name's extension. Raises `WrongUseError`."""
    if file_format := formats.get(target.suffix.lower()):
        return file_format
    known = ", ".join(formats)
    raise WrongUseError(f"'{target.name}' has no known format. Use one of the extensions {known}.")


def _numbered(target: Path, at: int, count: int) -> Path:
    return target if count == 1 else target.with_stem(f"{target.stem}-{at + 1}")


def _show_files(paths: list[Path], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"file": str(path), "bytes": path.stat().st_size} for path in paths
    ]
    if as_json:
        output.print_json(rows)
        return
    for row in rows:
        output.write(f"{row['file']}  {output.size(row['bytes'])}\n")
