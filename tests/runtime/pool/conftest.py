import pytest

from tests.runtime.pool.world import World


@pytest.fixture
def world() -> World:
    return World()
