"""Names of vLLM's arguments, read from its source without an installation.

STOKER_VLLM_SOURCE names the folder of an unpacked wheel: `pip download vllm --no-deps`, `unzip`.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.models.llm.engines.vllm import engine, form_masks, sleep
from stoker.models.llm.engines.vllm.channel import LoadModel

SOURCE = Path(os.environ.get("STOKER_VLLM_SOURCE", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("STOKER_VLLM_SOURCE"), reason="STOKER_VLLM_SOURCE names no vLLM"
)
LOAD = LoadModel(
    folder="/m",
    device="cuda",
    dtype="auto",
    cache_bytes=1 << 30,
    gpu_share=0.5,
    adapters="/a",
    max_rank=8,
)


def class_of(file: str, name: str) -> ast.ClassDef:
    tree = ast.parse((SOURCE / file).read_text())
    return next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name
    )


def fields(file: str, name: str) -> set[str]:
    """Returns the annotated fields of a class."""
    return {
        node.target.id
        for node in class_of(file, name).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def passed(callee: str) -> Iterator[str]:
    """Yields the keywords that our code passes to a callable of this name."""
    for node in ast.walk(ast.parse(Path(engine.__file__).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name == callee:
                yield from (word.arg for word in node.keywords if word.arg)


def choices(file: str, name: str) -> set[Any]:
    """Returns the values of a `Literal` that a module assigns to a name."""
    tree = ast.parse((SOURCE / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    raise LookupError(name)


def test_engine_arguments() -> None:
    known = fields("vllm/engine/arg_utils.py", "EngineArgs")
    ours = {*passed("EngineArgs"), *engine._on_gpu(LOAD), *engine._on_cpu(LOAD)}
    ours |= {*engine._with_adapters(LOAD), "logits_processors"}
    assert ours > {"tensor_parallel_size", "enable_sleep_mode", "load_format"}
    assert ours <= known


def test_sampling_parameters() -> None:
    ours = {*passed("SamplingParams")}
    assert len(ours) > 15
    assert ours <= fields("vllm/sampling_params.py", "SamplingParams")


def test_values() -> None:
    assert "fp8" in choices(
        "vllm/model_executor/layers/quantization/__init__.py", "QuantizationMethods"
    )
    assert {"auto", "fp8"} <= choices("vllm/config/cache.py", "CacheDType")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("sleep", {"level"}),
        ("wake_up", set()),
        ("add_lora", set()),
        ("collective_rpc", {"method"}),
    ],
)
def test_methods(method: str, words: set[str]) -> None:
    body = class_of("vllm/v1/engine/llm_engine.py", "LLMEngine").body
    (found,) = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == method]
    assert words <= {argument.arg for argument in found.args.args}


def test_sleep() -> None:
    allocator = class_of("vllm/device_allocator/cumem.py", "CuMemAllocator")
    names = {node.attr for node in ast.walk(allocator) if isinstance(node, ast.Attribute)}
    methods = {node.name for node in allocator.body if isinstance(node, ast.FunctionDef)}
    assert "pointer_to_data" in names
    assert "get_current_usage" in methods
    assert {"handle", "tag"} <= fields("vllm/device_allocator/__init__.py", "AllocationData")
    backend = ast.unparse(class_of("vllm/device_allocator/sleep_mode_backend.py", "CuMemBackend"))
    assert all(f"'{tag}'" in backend for tag in sleep._BACKED_UP)
    platform = class_of("vllm/platforms/interface.py", "Platform")
    checks = {node.name for node in platform.body if isinstance(node, ast.FunctionDef)}
    assert {"is_sleep_mode_available", "is_cumem_allocator_available"} <= checks


def test_forms_on_several_devices() -> None:
    file = "vllm/v1/structured_output/backend_types.py"
    for name, ours, unused in (
        ("StructuredOutputGrammar", form_masks.FormGrammar, set[str]()),
        ("StructuredOutputBackend", form_masks.FormBackend, {"compile_grammar"}),
    ):
        methods = [node for node in class_of(file, name).body if isinstance(node, ast.FunctionDef)]
        assert {method.name for method in methods} - unused <= set(dir(ours))
    assert "params" in fields("vllm/v1/structured_output/request.py", "StructuredOutputRequest")
    manager = ast.unparse(
        class_of("vllm/v1/structured_output/__init__.py", "StructuredOutputManager")
    )
    assert "self.backend.allocate_token_bitmask(" in manager
    assert "def use_structured_output" in ast.unparse(class_of("vllm/v1/request.py", "Request"))
