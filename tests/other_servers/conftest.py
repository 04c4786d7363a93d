"""Models of the demo on the shared server, and one with prompts."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import stoker.demo
from tests.support.deploying import deploy
from tests.support.server import Server

MODELS = Path(stoker.demo.__file__).parent / "models"
ENCODER, RERANKER, CLASSIFIER = "tiny-encoder", "tiny-reranker", "tiny-sentiment"
MASKED, CHAT, VISION = "tiny-fill-mask", "tiny-chat", "tiny-vision"
TRANSLATOR, TAGGER, DRAWER = "tiny-translator", "tiny-ner", "tiny-draw"
PROMPTED, EXCLUDING = "prompted", "excluding"
DEPLOYED = (
    *(ENCODER, RERANKER, CLASSIFIER, MASKED, CHAT, VISION),
    *(
        TRANSLATOR,
        TAGGER,
        "tiny-clip",
        "tiny-vqa",
        "tiny-summarizer",
        "tiny-qa",
        "tiny-nli",
        DRAWER,
    ),
)
PROMPTS = {"query": "what is ", "passage": "the page says "}


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Maps model ids to folders. Two encoders have prompts, and one of them leaves the prompts out
    of the vectors.
    """
    root = tmp_path_factory.mktemp("prompts")
    for name in (PROMPTED, EXCLUDING):
        shutil.copytree(MODELS / ENCODER, root / name)
        about = {"prompts": PROMPTS, "default_prompt_name": "query"}
        (root / name / "config_sentence_transformers.json").write_text(json.dumps(about))
        config = json.loads((root / name / "config.json").read_text()) | {
            "matryoshka_dimensions": [8]
        }
        (root / name / "config.json").write_text(json.dumps(config))
    pooling = root / EXCLUDING / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    return {name: MODELS / name for name in DEPLOYED} | {
        name: root / name for name in (PROMPTED, EXCLUDING)
    }


@pytest.fixture(scope="package")
def client(server: Server, folders: dict[str, Path]) -> Iterator[httpx.Client]:
    """Yields a client of an account with these models. Their numbers are compared with float32."""
    server.wait_ready()
    with server.account("other servers") as client:
        for name, folder in folders.items():
            deploy(client, folder, name, dtype="float32")
        yield client
