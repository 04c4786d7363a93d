"""Import from a hub: the server fetches a large model, compared with a plain download."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

from bench.common import ROOT, Plan, Report, at_least, progress, scratch
from bench.models import write_bulk_model
from bench.service import Service, serving

SIZE = 1024**3
AIM = 0.7
MIB = 1024**2
REPO = "bench/bulk"
POLL_S = 0.02
LIMIT_S = 120.0
PLAIN = """\
import os, shutil, sys, urllib.request
hub, folder, *names = sys.argv[1:]
for name in names:
    with urllib.request.urlopen(f"{hub}/{name}") as answer:
        with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
"""


def run(plan: Plan) -> Report:
    size = plan.sized(SIZE, 32 * MIB)
    report = Report("hub_import", f"{size / MIB:g} MiB of random weights, from a hub to ready")
    with scratch() as place:
        folder = place / "model"
        write_bulk_model(folder, size)
        with (
            _hub(folder) as endpoint,
            serving(report, place / "ours", hub_endpoint=endpoint) as service,
        ):
            for _ in range(plan.rounds):
                plain, durable = _plain(service, endpoint, place / "plain")
                ours = _imported(service)
                for label, seconds in (
                    ("import, until the artifact is ready", ours),
                    ("plain download", plain),
                    ("plain download and sync", durable),
                ):
                    report.add(label, "MiB/s", size / MIB / seconds)
                ratio = plain / ours
                report.add("import / plain", "x", ratio, aim=f"≥ {AIM:g}", meets=at_least(AIM))
                report.add("import / plain with sync", "x", durable / ours)
                progress(f"import / plain: {ratio:.2f}")
    report.notes = [
        "Plain: one file after the other by Python's urllib into files, its start included. An "
        "import hashes every part and each file for the digest of the hub's list, writes durably "
        "and inspects.",
        "The hub is a Python server on the same machine, which sends from memory.",
    ]
    return report


@contextlib.contextmanager
def _hub(folder: Path) -> Generator[str]:
    """Yields the address of a hub with the folder as a repository."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.stand_ins.model_hub", REPO, folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=10)


def _plain(service: Service, endpoint: str, folder: Path) -> tuple[float, float]:
    """Returns the seconds of the download, and the seconds until it is durable."""
    listing = service.api.get(f"{endpoint}/api/models/{REPO}/revision/main").raise_for_status()
    repository = listing.json()
    names = [
        f"{REPO}/resolve/{repository['sha']}/{file['rfilename']}" for file in repository["siblings"]
    ]
    folder.mkdir()
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", PLAIN, endpoint, folder, *names], check=True, timeout=120)
    plain = time.perf_counter() - began
    subprocess.run(["sync", "-f", folder], check=True)
    durable = time.perf_counter() - began
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return plain, durable


def _imported(service: Service) -> float:
    made = service.api.post("/v1/model-artifacts", json={"display_name": "bulk"}).raise_for_status()
    path = f"/v1/model-artifacts/{made.json()['id']}"
    began = time.perf_counter()
    service.api.post(f"{path}/imports", json={"repo_id": REPO}).raise_for_status()
    while (artifact := service.api.get(path).raise_for_status().json())["status"] != "ready":
        if artifact["status"] == "failed" or time.perf_counter() - began > LIMIT_S:
            raise RuntimeError(f"the import came to nothing: {artifact}")
        time.sleep(POLL_S)
    seconds = time.perf_counter() - began
    service.api.delete(path).raise_for_status()
    subprocess.run(["sync", "-f", ROOT], check=True)
    return seconds
