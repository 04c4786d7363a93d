"""`stoker video` and `stoker videos`: generate and manage videos."""

import time
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli import confirmation, output
from stoker.cli.call import TIMEOUT_S, Model, Parameters, parsed_parameters
from stoker.cli.confirmation import Yes
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, Client, JsonObject, quoted
from stoker.client.errors import StokerError

VIDEOS = "/v1/videos"
POLL_S = 1.0

app = typer.Typer(no_args_is_help=True, help="Manage video jobs.")

VideoId = Annotated[str, typer.Argument(metavar="VIDEO_ID", help="Video ID.")]
Target = Annotated[Path, typer.Option("-o", "--output", help="Path to write (MP4).")]

FIELDS: Columns = {
    "id": lambda v: v["id"],
    "model": lambda v: v["model"],
    "status": lambda v: v["status"],
    "progress": lambda v: f"{v['progress']}%",
    "seconds": lambda v: v["seconds"],
    "size": lambda v: v["size"],
    "prompt": lambda v: v["prompt"],
    "error": lambda v: v["error"] and f"{v['error']['code']}: {v['error']['message']}",
}


def video(
    ctx: typer.Context,
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="Prompt.")],
    *,
    image: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Image for the first frame."),
    ] = None,
    target: Target = Path("video.mp4"),
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the video, or print its ID and exit.")
    ] = True,
    parameters: Parameters = None,
    as_json: AsJson = False,
) -> None:
    """Generate a video and save it to a file. The job continues if you stop this command."""
    server = client(ctx)
    body: JsonObject = {"model": model, "prompt": prompt, **parsed_parameters(parameters or [])}
    files = [("input_reference", image)] if image else []
    job = server.json(ApiRequest(method="POST", path=VIDEOS, json=body, files=files))
    if wait:
        job = _ended(server, job)
        server.download(_content(job["id"]), target)
        output.say(f"Saved to {target}.")
    output.show_object(job, FIELDS, as_json=as_json)


@app.command("list")
def list_videos(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List videos, including queued and failed ones."""
    rows = list(client(ctx).pages(VIDEOS, limit))
    output.show_list(rows, FIELDS, as_json=as_json, none="No videos yet.")


@app.command()
def show(ctx: typer.Context, video_id: VideoId, as_json: AsJson = False) -> None:
    """Show the status of a video."""
    output.show_object(client(ctx).get(_path(video_id)), FIELDS, as_json=as_json)


app.command("get", hidden=True)(show)


@app.command()
def download(
    ctx: typer.Context,
    video_id: VideoId,
    target: Target = Path("video.mp4"),
    thumbnail: Annotated[
        bool, typer.Option("--thumbnail", help="Download the thumbnail (WebP) instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download a completed video."""
    client(ctx).download(_content(video_id, "thumbnail" if thumbnail else "video"), target)
    done: JsonObject = {"id": video_id, "file": str(target)}
    output.show_done(done, f"Saved to {target}.", as_json=as_json)


@app.command()
def delete(
    ctx: typer.Context, video_id: VideoId, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a video and its content. An active job is stopped."""
    answer = confirmation.delete(
        client(ctx),
        _path(video_id),
        lambda v: f"Delete video {video_id} of {v['model']}, {v['status']}?",
        yes=yes,
    )
    output.show_done(answer, f"Deleted {video_id}.", as_json=as_json)


def _path(video_id: str) -> str:
    return f"{VIDEOS}/{quoted(video_id)}"


def _content(video_id: str, variant: str = "video") -> ApiRequest:
    return ApiRequest(
        method="GET",
        path=f"{_path(video_id)}/content",
        params={"variant": variant},
        timeout_s=TIMEOUT_S,
    )


def _ended(server: Client, job: JsonObject) -> JsonObject:
    """Waits for a job and returns it. Raises `StokerError` if it failed."""
    with output.spinner(f"{job['id']}: waiting …") as update:
        try:
            while job["status"] in ("queued", "in_progress"):
                update(f"{job['id']}: {job['status'].replace('_', ' ')}, {job['progress']}%")
                time.sleep(POLL_S)
                job = server.get(_path(job["id"]))
        except KeyboardInterrupt:
            output.say(
                f"\nThe job continues. Get the video with: stoker videos download {job['id']}"
            )
            raise
    if job["status"] == "failed":
        raise StokerError(f"The video failed: {job['error']['message']}")
    return job
