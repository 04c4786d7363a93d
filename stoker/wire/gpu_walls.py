"""Result of the test whether CUDA starts inside the walls."""

import msgspec

from stoker.sandbox.openings import Opening, left_out


class GpuWalls(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the test on a machine."""

    problem: str = ""
    """Problem of CUDA behind all walls. Empty if it starts there."""
    bare_problem: str = ""
    """Problem of CUDA without walls, so that they are not the cause. Empty if there is none."""
    openings: list[Opening] = []
    """Smallest openings with which CUDA starts. Replicas on a GPU get them."""

    @property
    def can_be_opened(self) -> bool:
        """Returns True if replicas may have the openings: at most one wall is missing as a
        whole.
        """
        return len(left_out(self.openings)) <= 1

    @property
    def message(self) -> str:
        """What the openings are, in words. Empty if there are none."""
        return ", and ".join(map(str, self.openings))
