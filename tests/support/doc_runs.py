"""Which test runs or checks a page's blocks, and why some blocks do not run."""

from collections.abc import Mapping

from tests.support.doc_blocks import RUNNABLE, SHELL, Block, blocks

CONTAINERS = "needs Docker and a registry of images"
KUBERNETES = "needs a cluster"
GPU = "needs a GPU"
DEVELOPMENT = "runs the tests or the benchmarks themselves"
OTHER_MACHINE = "needs a package index, and a second machine with a GPU"

MOVING = "tests/demo/test_pages.py::test_calls_of_pages_for_users_of_other_servers"
PLUGIN = "tests/test_doc_blocks.py::test_the_plugin_of_the_guide"
CHECKOUT = "tests/demo/test_checkout.py"
AGENTS = "tests/launch/test_launch.py"
CONTAINER_PAGES = "tests/packaging/test_container_pages.py"
COMPOSE = f"{CONTAINER_PAGES}::test_compose"
IMAGE = "tests/packaging/test_container_blocks.py::test_image"

CHECKED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("README.md", "make test "): (DEVELOPMENT, "tests/test_make_blocks.py::test_development"),
    ("CONTRIBUTING.md", "make test "): (DEVELOPMENT, "tests/test_make_blocks.py::test_development"),
    ("docs/containers.md", "umask 077"): (CONTAINERS, COMPOSE),
    ("docs/containers.md", "echo STOKER_RUNTIME=ray"): (CONTAINERS, COMPOSE),
    ("docs/kubernetes.md", "cat > stoker.yaml"): (KUBERNETES, f"{CONTAINER_PAGES}::test_chart"),
    ("docs/gpu.md", "make bench-gpu"): (GPU, "tests/test_make_blocks.py::test_bench_gpu"),
    ("docs/gpu.md", "mkdir -p pack/wheels"): (
        OTHER_MACHINE,
        "tests/test_bench_gpu_pack.py::test_blocks",
    ),
    ("docs/gpu.md", "tar -xf pack.tar"): (
        OTHER_MACHINE,
        "tests/test_bench_gpu_pack.py::test_blocks",
    ),
}
"""Maps a page and the beginning of a block to the reason that it does not run, and the test that
checks its commands, options, files and names.
"""


RUN_BY: Mapping[tuple[str, str], str] = {
    ("README.md", "make demo"): f"{CHECKOUT}::test_make_demo",
    (
        "docs/gpu.md",
        ".venv/bin/stoker doctor --gpu",
    ): "tests/cli/test_gpu_doctor.py::test_without_a_gpu",
    ("docs/guide/installation.md", "make install"): f"{CHECKOUT}::test_make_install",
    ("docs/guide/installation.md", "python3 -m venv"): (
        "tests/packaging/test_wheel.py::test_uninstall_leaves_nothing"
    ),
    ("CONTRIBUTING.md", "mmdebstrap"): IMAGE,
    ("docs/containers.md", "podman build"): IMAGE,
    ("docs/guide/installation.md", "docker build"): IMAGE,
    ("docs/guide/language-models.md", "stoker engines install vllm"): (
        "tests/engines/test_vllm_block.py::test_block_of_the_guide"
    ),
    ("deploy/package.md", "python3 -m venv"): "tests/packaging/test_wheel.py::test_is_the_wheel",
    ("docs/guide/python.md", "make dist-client"): "tests/client/test_wheel.py::test_right_label",
    ("stoker/client/README.md", "from stoker_client import"): (
        "tests/demo/test_python_guide.py::test_readme_of_the_client"
    ),
    ("docs/guide/ray.md", "export STOKER_DATABASE_URL"): (
        "tests/ray/test_fleet.py::test_ray_places_what_is_called"
    ),
    ("docs/guide/coding-agents.md", "stoker launch claude\n"): f"{AGENTS}::test_block_of_the_guide",
    ("docs/guide/coding-agents.md", "export ANTHROPIC_BASE_URL"): (
        f"{AGENTS}::test_variables_of_the_guide"
    ),
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
    """Returns True if a key of `CHECKED` or `RUN_BY` names a block."""
    page, beginning = place
    return page == block.page and block.language in RUNNABLE and block.text.startswith(beginning)


def block_of(page: str, beginning: str) -> Block:
    """Returns the block of a page that begins with a text."""
    (found,) = (block for block in blocks(page) if matching(block, (page, beginning)))
    return found


def reason(block: Block) -> str | None:
    """Returns why no test runs a block, or None."""
    return next((why for place, (why, _) in CHECKED.items() if matching(block, place)), None)


def sole_tests(block: Block) -> list[str]:
    """Returns the tests that run a block alone."""
    return [test for place, test in RUN_BY.items() if matching(block, place)]


def shell_blocks(page: str) -> list[Block]:
    """Returns the shell blocks of a page that run together."""
    return [
        block
        for block in blocks(page)
        if block.language in SHELL and not reason(block) and not sole_tests(block)
    ]
