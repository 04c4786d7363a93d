"""Result of the test whether CUDA starts inside a replica's walls."""

import msgspec

from stoker.sandbox.openings import Opening, left_out


class GpuWalls(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the test on a machine."""

    problem: str = ""
    """Error of CUDA behind all walls. Empty if it starts there."""
    bare_problem: str = ""
    """Error of CUDA without walls: then they are not the cause. Empty if there is none."""
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
        """Describes the openings in words. Empty if there are none."""
        return ", and ".join(map(str, self.openings))
