from tests.sandbox.support import confinement

__all__ = ["confinement"]
