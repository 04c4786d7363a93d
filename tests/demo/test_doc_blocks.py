"""The shell blocks of the pages work as written, one page at a time: see tests.demo.doc_plans."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.demo.setup import MODELS
from tests.adapters.support import made
from tests.demo.doc_plans import LORA, PLANS, Key, Plan
from tests.support.doc_blocks import Reader, in_order, replaced
from tests.support.doc_runs import shell_blocks
from tests.support.gguf import write_gguf
from tests.support.server import Server
from tools.stand_ins.model_hub import ModelHub

pytestmark = pytest.mark.one_machine


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an adapter for tiny-chat."""
    folder = tmp_path_factory.mktemp("lora")
    options: Any = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"]}
    made(folder, MODELS / "tiny-chat", loader="AutoModelForCausalLM", **options)
    return folder


@pytest.fixture(scope="module")
def on_the_hub(hub: ModelHub, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Puts the repositories that pages name on the hub."""
    hub.put("org/name", MODELS / "tiny-sentiment")
    hub.put("org/private", MODELS / "tiny-ner")
    path = write_gguf(MODELS / "tiny-chat", tmp_path_factory.mktemp("gguf") / "x.Q4_K_M.gguf")
    hub.put("org/name-GGUF", {path.name: path.read_bytes(), "x.F32.gguf": path.read_bytes()})


def key_of(plan: Plan, server: Server, state: Any) -> str:
    if plan.key is Key.DEMO:
        return state["account_key"]
    if plan.key is Key.OPERATOR:
        return server.operator_key
    with server.account("reader") as client:
        return client.headers["authorization"].removeprefix("Bearer ")


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """Yields the shell of a reader of the test's page."""
    plan = PLANS[request.getfixturevalue("page")]
    env = {"MODELS": str(MODELS), **plan.env}
    port = 0
    if plan.key is not Key.SERVER:
        demo, state = (request.getfixturevalue(name) for name in ("demo", "state"))
        (tmp_path / ".data").symlink_to(demo.data_dir)
        port = int(demo.base_url.rpartition(":")[2])
        env["STOKER_API_KEY"] = key_of(plan, demo, state)
    if LORA in plan.replace:
        env["LORA"] = str(request.getfixturevalue("lora"))
    started = Reader(tmp_path, port, env=env)
    yield started
    started.stop()


@pytest.mark.parametrize("page", PLANS)
@pytest.mark.usefixtures("on_the_hub")
def test_page(page: str, reader: Reader) -> None:
    plan = PLANS[page]
    written = "".join(block.text for block in shell_blocks(page))
    script = f"{plan.before}{replaced(written, plan.replace)}{plan.after}"
    output = reader.run(script, plan.stdin)
    assert in_order(plan.shown, output), output
