"""What holds for the folder of every shipped model."""

import json

from stoker.demo.build.__main__ import BUILDS, SHIPPED


def check(name: str, pipeline: str) -> None:
    """A megabyte of plain files at most, a card that names licence and task, no code to run."""
    assert name in BUILDS
    files = [file for file in (SHIPPED / name).rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".json", ".md", ".safetensors"}
    assert sum(file.stat().st_size for file in files) <= 1_000_000
    lines = (SHIPPED / name / "README.md").read_text().splitlines()
    assert {"license: apache-2.0", f"pipeline_tag: {pipeline}"} <= set(lines)
    assert "auto_map" not in json.loads((SHIPPED / name / "config.json").read_text())
