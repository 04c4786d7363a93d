"""What is asked of Ray: placement groups, and which nodes it has. All of it blocks.

Nothing else here imports Ray, and servers never do: it takes 90 MB and two dozen threads.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from stoker.runtime.ray.reconcile import Create, Group, Machine

NAMESPACE = "stoker"
LABEL = "stoker-node"
"""Of Ray's nodes: the id of ours."""
_A_BIT = 0.001
"""Of a graphics device: has Ray find, or its autoscaler bring, a node with one. How much of which
device a replica takes is counted by its node."""
_NAME = re.compile(r"^lease-(\d+)-(\d+)$")
_STATES_WITHOUT_NODE = frozenset({"PENDING", "PREPARED", "RESCHEDULING"})


class Ray:
    """A connection to the Ray of this machine."""

    def __init__(self, address: str) -> None:
        """
        Args:
            address: `host:port` of its head.
        """
        import ray

        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)

    def nodes(self) -> dict[str, Machine]:
        """The nodes that are alive, by our ids."""
        import ray

        found: list[dict[str, Any]] = ray.nodes()
        return {
            one["Labels"][LABEL]: Machine(
                memory_bytes=int(one["Resources"].get("memory", 0)),
                has_device=one["Resources"].get("GPU", 0) > 0,
            )
            for one in found
            if one["Alive"] and LABEL in one["Labels"]
        }

    def groups(self) -> list[Group]:
        """Those of leases, that have not ended."""
        import ray
        from ray.util.placement_group import placement_group_table

        ours = {one["NodeID"]: one["Labels"].get(LABEL) for one in ray.nodes() if one["Alive"]}
        found: list[Group] = []
        for identifier, said in placement_group_table().items():
            named = _NAME.match(said["name"])
            if not named or said["state"] == "REMOVED":
                continue
            node = None
            if said["state"] not in _STATES_WITHOUT_NODE:
                node = ours.get(said["bundles_to_node_id"].get(0))
            generation, size = map(int, named.groups())
            found.append(Group(id=identifier, generation=generation, size=size, node_id=node))
        return found

    def create(self, wanted: Sequence[Create]) -> None:
        import ray
        from ray.util.placement_group import placement_group

        ids = {one["Labels"].get(LABEL): one["NodeID"] for one in ray.nodes() if one["Alive"]}
        for one in wanted:
            selector: dict[str, str] = {}
            if one.on is not None:
                selector = {LABEL: one.on}
            elif one.not_on:
                selector = {LABEL: f"!in({','.join(one.not_on)})"}
            placement_group(
                [{"memory": one.size, **({"GPU": _A_BIT} if one.needs_device else {})}],
                # The only strategy that takes the hint below.
                strategy="STRICT_PACK",
                name=f"lease-{one.generation}-{one.size}",
                # It outlives whoever has made it.
                lifetime="detached",
                bundle_label_selector=[selector] if selector else None,
                _soft_target_node_id=ids.get(one.prefers) if one.prefers else None,
            )

    def remove(self, identifiers: Sequence[str]) -> None:
        from ray._raylet import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, remove_placement_group

        for one in identifiers:
            group = PlacementGroup(PlacementGroupID(bytes.fromhex(one)))
            with contextlib.suppress(ValueError):
                remove_placement_group(group)
