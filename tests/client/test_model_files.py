"""The files of a folder that belong to a model: the same for the command line, the hub import and
the console.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from stoker.client.model_files import spare, why_left_out

FRONTEND = Path(__file__).parents[2] / "frontend"

SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
INDEX = "model.safetensors.index.json"

FOLDERS: dict[str, tuple[list[str], dict[str, str]]] = {
    "texts": (
        [
            *("config.json", "model.safetensors", "vocab.txt", "spiece.model", "source.spm"),
            *("chat_template.jinja", "qwen.tiktoken", "bpe.codes", "a.vocab", "artifact.metadata"),
            *("TOKENIZER.JSON", "README.md", "readme", "License", "LICENCE.md", "notice"),
        ],
        {"readme.rst": "not needed", "licenses.md": "not needed", "json": "not needed"},
    ),
    "modules": (
        [
            *("config.json", "modules.json", "model.safetensors", "1_Pooling/config.json"),
            *("2_Dense/config.json", "2_Dense/model.safetensors"),
        ],
        {"2_Dense/model.fp16.safetensors": "variant", "2_Dense/pytorch_model.bin": "pickle"},
    ),
    "pickles beside safetensors": (
        ["config.json", "model.safetensors"],
        {
            **dict.fromkeys(["pytorch_model.bin", "a.pt", "a.PTH", "a.ckpt", "a.pkl"], "pickle"),
            **dict.fromkeys(["tf_model.h5", "flax_model.msgpack", "a.onnx"], "another framework"),
            "pytorch_model.bin.index.json": "not needed",
            "tf_model.h5.index.json": "not needed",
            "cat.png": "image",
            "modeling.py": "code",
            "events.out.tfevents.1": "not needed",
        },
    ),
    "pickles alone": (["config.json"], {"pytorch_model.bin": "pickle"}),
    "hidden": (
        ["config.json", "model.safetensors"],
        {
            ".gitattributes": "not needed",
            ".config.json": "not needed",
            "unet/.config.json": "not needed",
            **dict.fromkeys([".git/config.json", ".cache/a/b.json"], "hidden"),
            "__pycache__/a.json": "hidden",
        },
    ),
    "checkpoints": (
        ["config.json", "model.safetensors", "my-checkpoint-1/config.json"],
        dict.fromkeys(
            ["checkpoint-10/model.safetensors", "runs/checkpoint-2/config.json"], "checkpoint"
        ),
    ),
    "other forms": (
        ["config.json", "model.safetensors", "sub/onnx/config.json"],
        {
            **dict.fromkeys(["onnx/config.json", "openvino/a.json"], "another library"),
            **dict.fromkeys(["original/params.json", "coreml/a/b.json"], "another library"),
            **dict.fromkeys(["Metal/a.json", "logs/a.txt", "runs/a.json"], "another library"),
            "original/consolidated.safetensors": "another library",
        },
    ),
    "twins": (
        ["config.json", "model.safetensors"],
        {
            **dict.fromkeys(["model.fp16.safetensors", "model.bf16.safetensors"], "variant"),
            "model.fp16-00001-of-00002.safetensors": "variant",
            "model.fp16.safetensors.index.json": "variant",
            "model.safetensors.index.fp16.json": "variant",
        },
    ),
    "a twin alone": (["config.json", "model.fp16.safetensors"], {}),
    "shards": (
        ["config.json", *SHARDS, INDEX],
        {
            "consolidated-00001-of-00002.safetensors": "not loaded",
            "consolidated.safetensors": "not loaded",
            "consolidated.safetensors.index.json": "not loaded",
            "model.fp16-00001-of-00002.safetensors": "variant",
        },
    ),
    "shards beside the whole": (
        ["config.json", "model.safetensors"],
        dict.fromkeys([*SHARDS, INDEX], "shard"),
    ),
    "speech": (
        [
            *("config.json", "model.safetensors", "speaker_embeddings.safetensors"),
            *("vocoder/config.json", "vocoder/model.safetensors"),
        ],
        {},
    ),
    "an adapter": (["adapter_config.json", "adapter_model.safetensors"], {}),
    "names that no loader knows": (["config.json", "weights.safetensors"], {}),
    "a pipeline": (
        ["model_index.json", "unet/config.json", "tokenizer/merges.txt", "original/config.json"]
        + [f"{part}/diffusion_pytorch_model.safetensors" for part in ("unet", "vae")],
        {
            "sd-v1-5.safetensors": "pipeline",
            "unet/diffusion_pytorch_model.fp16.safetensors": "variant",
        },
    ),
    "a pipeline's twin alone": (["model_index.json", "unet/model.fp16.safetensors"], {}),
    "a pipeline's sharded twin": (
        ["model_index.json", *(f"unet/{name}" for name in (*SHARDS, INDEX))],
        {
            "unet/model.fp16-00001-of-00002.safetensors": "variant",
            "unet/model.safetensors.index.fp16.json": "variant",
        },
    ),
    "GGUF": (["config.json", "m-Q4_K.gguf", "m-Q8_0.GGUF", "mmproj-m.gguf"], {}),
    "GGUF beside safetensors": (
        ["config.json", "model.safetensors"],
        dict.fromkeys(["m-Q4_K.gguf", "m.GGUF", "sub/m.gguf"], "GGUF beside"),
    ),
    "GGUF beside another form": (
        ["config.json", "m.gguf"],
        {"original/model.safetensors": "another library"},
    ),
    "letters beyond ASCII": (
        ["config.json", "größe.json"],
        {"a.\u017fafetensors": "not needed", "a.p\u212al": "not needed", "a.json\n": "not needed"},
    ),
    "nothing": ([], {}),
}


def left_out(paths: Iterable[str]) -> dict[str, str]:
    reasons = {path: why_left_out(path) for path in paths}
    stated = {path: reason for path, reason in reasons.items() if reason}
    return stated | spare(reasons.keys() - stated.keys())


@pytest.mark.parametrize("name", FOLDERS)
def test_folder(name: str) -> None:
    kept, expected = FOLDERS[name]
    stated = left_out([*kept, *expected])
    assert stated.keys() == expected.keys()
    for path, reason in expected.items():
        assert reason in stated[path], path


def drawn(count: int) -> list[list[str]]:
    """Returns folders with files of any of the folders above, some of them in another folder."""
    rng = Random(0)
    names = sorted({path for kept, expected in FOLDERS.values() for path in (*kept, *expected)})
    return [
        [rng.choice(("", "", "", "unet/", "original/")) + name for name in rng.sample(names, 12)]
        for _ in range(count)
    ]


def test_the_console_agrees(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (FRONTEND / "node_modules").exists():
        pytest.skip("there is no Node, or no frontend/node_modules: npm ci, in frontend/")
    bundle = tmp_path / "selection.mjs"
    subprocess.run(
        ["npx", "rolldown", "src/lib/selection.ts", "--file", str(bundle), "--format", "esm"],
        cwd=FRONTEND, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    folders = [[*kept, *expected] for kept, expected in FOLDERS.values()] + drawn(400)
    program = (
        f"import {{ selected }} from {json.dumps(bundle.as_uri())};"
        "import { readFileSync } from 'node:fs';"
        "const folders = JSON.parse(readFileSync(0, 'utf8'));"
        "const all = folders.map((paths) => [...selected(paths)]);"
        "process.stdout.write(JSON.stringify(all));"
    )
    printed = subprocess.run(
        ["node", "--input-type=module", "--eval", program],
        input=json.dumps(folders), text=True, check=True, capture_output=True, timeout=60,
    ).stdout  # fmt: skip
    for paths, kept in zip(folders, json.loads(printed), strict=True):
        assert set(kept) == set(paths) - left_out(paths).keys(), paths
