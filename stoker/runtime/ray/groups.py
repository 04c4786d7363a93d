"""Interface to Ray: placement groups and nodes. All methods block.

Only this module imports Ray, and servers never import it: Ray needs 90 MB and two dozen threads.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from stoker.runtime.ray.reconcile import Create, Group, NodeResources

NAMESPACE = "stoker"
LABEL = "stoker-node"
"""Label of Ray's nodes with the id of the Stoker node."""
_A_BIT = 0.001
"""Fraction of a GPU that a group requests. It makes Ray find, or its autoscaler add, a node with a
GPU. The node itself counts how much of which GPU a replica uses.
"""
_NAME = re.compile(r"^lease-(\d+)-(\d+)$")
_STATES_WITHOUT_NODE = frozenset({"PENDING", "PREPARED", "RESCHEDULING"})


class Ray:
    """Connection to the Ray instance of this machine."""

    def __init__(self, address: str) -> None:
        """
        Args:
            address: `host:port` of Ray's head.
        """
        import ray

        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)

    def nodes(self) -> dict[str, NodeResources]:
        """Returns the living nodes, by Stoker's node ids."""
        import ray

        ray_nodes: list[dict[str, Any]] = ray.nodes()
        return {
            ray_node["Labels"][LABEL]: NodeResources(
                memory_bytes=int(ray_node["Resources"].get("memory", 0)),
                has_device=ray_node["Resources"].get("GPU", 0) > 0,
            )
            for ray_node in ray_nodes
            if ray_node["Alive"] and LABEL in ray_node["Labels"]
        }

    def groups(self) -> list[Group]:
        """Returns the groups of leases that have not ended."""
        import ray
        from ray.util.placement_group import placement_group_table

        ours = {
            ray_node["NodeID"]: ray_node["Labels"].get(LABEL)
            for ray_node in ray.nodes()
            if ray_node["Alive"]
        }
        groups: list[Group] = []
        for identifier, info in placement_group_table().items():
            named = _NAME.match(info["name"])
            if not named or info["state"] == "REMOVED":
                continue
            node = None
            if info["state"] not in _STATES_WITHOUT_NODE:
                node = ours.get(info["bundles_to_node_id"].get(0))
            generation, size = map(int, named.groups())
            groups.append(Group(id=identifier, generation=generation, size=size, node_id=node))
        return groups

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
                # The only strategy that accepts the hint below.
                strategy="STRICT_PACK",
                name=f"lease-{one.generation}-{one.size}",
                # The group outlives its creator.
                lifetime="detached",
                bundle_label_selector=[selector] if selector else None,
                _soft_target_node_id=ids.get(one.prefers) if one.prefers else None,
            )

    def remove(self, identifiers: Sequence[str]) -> None:
        from ray._raylet import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, remove_placement_group

        for group_id in identifiers:
            group = PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))
            with contextlib.suppress(ValueError):
                remove_placement_group(group)
