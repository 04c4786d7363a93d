from tests.cli.conftest import cli, tagger

__all__ = ["cli", "tagger"]
