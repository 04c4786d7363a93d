"""Upload: pushing a large file, compared with copying and digesting it on the same disk."""

import subprocess
import time
from pathlib import Path

from bench.common import Plan, Report, at_least, scratch
from bench.models import write_bulk_model
from bench.service import Service, serving

SIZE = 1024**3
AIM = 0.7
MIB = 1024**2


def run(plan: Plan) -> Report:
    size = plan.sized(SIZE, 32 * MIB)
    report = Report("upload", f"{size / MIB:g} MiB of random weights, to a ready artifact")
    with scratch() as place, serving(report, place) as service:
        folder = place / "model"
        weights = write_bulk_model(folder, size)
        for _ in range(plan.rounds):
            copied, durable = _copied(weights, place / "copy")
            pushed = _pushed(service, folder)
            single = _put(service, folder)
            _add(report, size, pushed, single, copied, durable)
    report.notes = [
        "Copy: cp, then sha256sum of the copy, one after the other. A push hashes on both sides "
        "and answers once every part is durable; cp leaves its bytes to the page cache, so the "
        "copy with sync stands beside it.",
        "Nothing is dropped from the page cache: the file to send is read from memory by all.",
        "Push and copy are timed as processes, start included; single PUT: curl, one stream, "
        "without a digest.",
    ]
    return report


def _add(
    report: Report, size: int, pushed: float, single: float, copied: float, durable: float
) -> None:
    for label, seconds in (
        ("stoker artifacts push", pushed),
        ("single PUT", single),
        ("cp and sha256sum", copied),
        ("cp, sha256sum and sync", durable),
    ):
        report.add(label, "MiB/s", size / MIB / seconds)
    report.add("push / copy", "x", copied / pushed, aim=f"≥ {AIM:g}", meets=at_least(AIM))
    report.add("single PUT / copy", "x", copied / single)
    report.add("push / copy with sync", "x", durable / pushed)


def _copied(source: Path, target: Path) -> tuple[float, float]:
    """Returns the seconds of the copy and its digest, and the seconds until the copy is also
    durable.
    """
    started = time.perf_counter()
    _command("cp", source, target)
    _command("sha256sum", target)
    copied = time.perf_counter() - started
    _command("sync", target)
    durable = time.perf_counter() - started
    target.unlink()
    _settle()
    return copied, durable


def _pushed(service: Service, folder: Path) -> float:
    started = time.perf_counter()
    artifact = service.push(folder, "--name", "bulk")
    seconds = time.perf_counter() - started
    _delete(service, artifact["id"])
    return seconds


def _put(service: Service, folder: Path) -> float:
    """Sends the weights as one stream. Opening and completing the session is not timed."""
    body = {"display_name": "single"}
    artifact = service.api.post("/v1/model-artifacts", json=body).raise_for_status().json()
    uploads = f"/v1/model-artifacts/{artifact['id']}/uploads"
    upload = service.api.post(uploads).raise_for_status().json()["upload_id"]
    seconds = 0.0
    for path in sorted(folder.iterdir()):
        url = f"{service.base_url}{uploads}/{upload}/files/{path.name}"
        # The key is passed through stdin, because other users can see arguments.
        config = f'header = "authorization: Bearer {service.key}"\n'
        started = time.perf_counter()
        _command("curl", "-sSf", "--config", "-", "-T", path, url, stdin=config)
        if path.suffix == ".safetensors":
            seconds = time.perf_counter() - started
    service.api.post(f"{uploads}/{upload}/complete").raise_for_status()
    _delete(service, artifact["id"])
    return seconds


def _delete(service: Service, artifact_id: str) -> None:
    artifact = service.api.get(f"/v1/model-artifacts/{artifact_id}").raise_for_status().json()
    if artifact["status"] != "ready":
        raise RuntimeError(f"the artifact is {artifact['status']}: {artifact['failure']}")
    service.api.delete(f"/v1/model-artifacts/{artifact_id}").raise_for_status()
    _settle()


def _settle() -> None:
    """Waits until earlier writes have reached the disk, so that they do not slow down the next
    one.
    """
    _command("sync", "-f", Path(__file__).parent)


def _command(name: str, *arguments: str | Path, stdin: str = "") -> None:
    done = subprocess.run(
        [name, *arguments], input=stdin, text=True, capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr.strip()[-500:]}")
