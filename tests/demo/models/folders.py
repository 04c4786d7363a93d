"""Checks that every shipped model's folder must pass."""

import json

from stoker.demo.setup import MODELS as SHIPPED
from tools.demo_models.__main__ import BUILDS
from tools.demo_models.common import LARGEST_FOLDER


def check(name: str, pipeline: str, *, largest: int = LARGEST_FOLDER) -> None:
    """Checks that the folder has only a few plain files, a card that names licence and task, and no
    code.
    """
    assert name in BUILDS
    files = [file for file in (SHIPPED / name).rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".jinja", ".json", ".md", ".safetensors"}
    assert sum(file.stat().st_size for file in files) <= largest
    lines = (SHIPPED / name / "README.md").read_text().splitlines()
    assert {"license: apache-2.0", f"pipeline_tag: {pipeline}"} <= set(lines)
    configs = [json.loads(file.read_text()) for file in files if file.name == "config.json"]
    assert configs
    assert all("auto_map" not in config for config in configs)
