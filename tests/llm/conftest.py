from pathlib import Path

import pytest

from tests.llm.support import tiny_llama


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def converted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as OpenVINO's IR. Converted once, because the conversion takes the longest."""
    from stoker.models.llm.engines.export import TOLERANCE, export

    folder = tmp_path_factory.mktemp("converted")
    assert export(llama, folder, threads=1) <= TOLERANCE
    return folder
