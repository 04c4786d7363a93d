from typing import Any

from ray._raylet import PlacementGroupID

class PlacementGroup:
    def __init__(self, _id: PlacementGroupID) -> None: ...

def placement_group(
    bundles: list[dict[str, float]],
    strategy: str,
    name: str,
    lifetime: str,
    _soft_target_node_id: str | None,
    bundle_label_selector: list[dict[str, str]] | None,
) -> PlacementGroup: ...
def placement_group_table() -> dict[str, dict[str, Any]]: ...
def remove_placement_group(placement_group: PlacementGroup) -> None: ...
