"""Which test runs a page's blocks, and why some blocks do not run."""

from collections.abc import Mapping

from tests.support.doc_blocks import RUNNABLE, SHELL, Block, blocks

DOWNLOADS = "downloads gigabytes; the tests' environments are made by the same commands"
CONTAINERS = "needs containers"
KUBERNETES = "needs Kubernetes"
GPU = "needs a GPU"
INSTALLS = "installs packages; tests/client/test_wheel.py installs the same wheel"
RAY = "needs several machines; tests/ray/test_fleet.py runs the same commands"
OTHER_SERVER = "is a request to another server"
DEVELOPMENT = "runs the tests or the benchmarks themselves"
OTHER_MACHINE = "prepares a machine without a network"
CODING_AGENT = (
    "starts a coding agent; tests/launch/test_coding_agents.py does so if it is installed"
)

MOVING = "tests/demo/test_pages.py::test_calls_of_pages_for_users_of_other_servers"

VLLM = """curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" -d"""
PLUGIN = "tests/test_doc_blocks.py::test_the_plugin_of_the_guide"

NOT_RUN: Mapping[tuple[str, str], str] = {
    ("README.md", "make demo"): DOWNLOADS,
    ("README.md", "make test "): DEVELOPMENT,
    ("CONTRIBUTING.md", "make test "): DEVELOPMENT,
    ("CONTRIBUTING.md", "mmdebstrap"): CONTAINERS,
    ("deploy/package.md", "python3 -m venv"): DOWNLOADS,
    ("docs/containers.md", "podman build"): CONTAINERS,
    ("docs/containers.md", "umask 077"): CONTAINERS,
    ("docs/containers.md", "echo STOKER_RUNTIME=ray"): CONTAINERS,
    ("docs/kubernetes.md", "cat > stoker.yaml"): KUBERNETES,
    ("docs/gpu.md", ".venv/bin/stoker doctor --gpu"): GPU,
    ("docs/gpu.md", "make bench-gpu"): GPU,
    ("docs/gpu.md", "mkdir -p pack/wheels"): OTHER_MACHINE,
    ("docs/gpu.md", "tar -xf pack.tar"): OTHER_MACHINE,
    ("docs/guide/coding-agents.md", "stoker launch claude\n"): CODING_AGENT,
    ("docs/guide/coding-agents.md", "export ANTHROPIC_BASE_URL"): CODING_AGENT,
    ("docs/guide/installation.md", "make install"): DOWNLOADS,
    ("docs/guide/installation.md", "python3 -m venv"): DOWNLOADS,
    ("docs/guide/installation.md", "docker build"): CONTAINERS,
    ("docs/guide/language-models.md", "stoker engines install vllm"): DOWNLOADS,
    ("docs/guide/python.md", "make dist-client"): INSTALLS,
    ("docs/guide/ray.md", "export STOKER_DATABASE_URL"): RAY,
    ("docs/moving/hf-endpoints.md", "curl https://endpoint.example"): OTHER_SERVER,
    ("docs/moving/infinity.md", "curl http://127.0.0.1:7997"): OTHER_SERVER,
    ("docs/moving/tgi.md", "curl http://127.0.0.1:8080"): OTHER_SERVER,
    ("docs/moving/vllm.md", VLLM): (OTHER_SERVER),
}
"""Maps a page and the beginning of a block to the reason that no test runs the block."""


RUN_BY: Mapping[tuple[str, str], str] = {
    **{
        ("README.md", beginning): f"tests/demo/test_demo.py::{test}"
        for beginning, test in {
            ". .venv/bin/activate": "test_key",
            "stoker artifacts push": "test_own_model",
            "curl": "test_curl",
            "stoker call": "test_command_line",
            "stoker chat": "test_chat",
            "stoker image": "test_files",
            "echo": "test_agents",
            "import json, httpx": "test_python",
            "stoker deploy hf:": "test_hub",
        }.items()
    },
    ("docs/guide/checks.md", "cat > checks.json"): (
        "tests/demo/test_demo.py::test_checks_of_the_guide"
    ),
    ("docs/guide/trials.md", "printf"): "tests/demo/test_demo.py::test_trials_of_the_guide",
    ("docs/guide/trials.md", "stoker tune"): "tests/demo/test_demo.py::test_trials_of_the_guide",
    ("docs/guide/versions.md", "stoker versions add"): (
        "tests/demo/test_demo.py::test_versions_of_the_guide"
    ),
    **{
        ("docs/guide/integrations.md", f"import os\n\n{first}"): (
            f"tests/demo/test_demo.py::test_{test}"
        )
        for test, first in {
            "langchain": "from langchain_openai",
            "llama_index": "from llama_index",
            "litellm": "import litellm",
        }.items()
    },
    ("docs/guide/batches.md", "import json"): "tests/batches/test_batches.py::test_the_guide",
    ("docs/guide/plugins.md", "from pydantic import"): PLUGIN,
    ("docs/guide/plugins.md", "class BagEngine"): PLUGIN,
}
"""Maps a page and the beginning of a block to the test that runs this block alone."""

WHOLE: Mapping[tuple[str, str], str] = {
    ("docs/quickstart.md", "sh"): "tests/demo/test_pages.py::test_quickstart",
    ("docs/tasks.md", "sh"): "tests/demo/test_demo.py::test_calls_in_the_docs_work",
    ("docs/cli.md", "bash"): "tests/test_doc_blocks.py::test_examples_of_the_reference",
    ("docs/guide/python.md", "python"): "tests/demo/test_python_guide.py::test_program",
    ("docs/guide/", "python"): "tests/demo/test_demo.py::test_guide",
    ("docs/tasks/", "sh"): "tests/demo/test_demo.py::test_calls_in_the_docs_work",
    ("docs/moving/", "sh"): MOVING,
    ("docs/moving/", "python"): MOVING,
}
"""Maps the beginning of pages and a language to the test that runs all such blocks."""


def matching(block: Block, place: tuple[str, str]) -> bool:
    """Returns True if a key of `NOT_RUN` or `RUN_BY` names a block."""
    page, beginning = place
    return page == block.page and block.language in RUNNABLE and block.text.startswith(beginning)


def reason(block: Block) -> str | None:
    """Returns why no test runs a block, or None."""
    return next((why for place, why in NOT_RUN.items() if matching(block, place)), None)


def shell_blocks(page: str) -> list[Block]:
    """Returns a page's shell blocks that run."""
    return [block for block in blocks(page) if block.language in SHELL and not reason(block)]
