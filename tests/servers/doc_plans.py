"""How the shell blocks about several servers run: with PostgreSQL and a bucket of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FleetPlan:
    """How a page's shell blocks run."""

    replace: Mapping[str, str] = field(default_factory=dict[str, str])
    shown: tuple[str, ...] = ()
    """Parts of the output, in their order."""
    after: str = ""
    """Script that runs last."""


DATABASE = {
    "postgresql://stoker@db.inner/stoker": "$DATABASE",
    "s3://bucket/prefix": "s3://models/$PREFIX",
    "/var/lib/": "var/",
}
KEY = "export STOKER_API_KEY=$(cat var/stoker/operator-key)\n"
REGISTERED = "until stoker cluster status --json | grep -q node_; do sleep 0.5; done\n"

FLEET_PLANS: Mapping[str, FleetPlan] = {
    "docs/guide/fleet.md": FleetPlan(
        replace={"cluster up --nodes 2": "cluster up --port 0 --nodes 2"},
        shown=("team", "for replicas"),
    ),
    "docs/guide/nodes.md": FleetPlan(
        replace={
            **DATABASE,
            "7070": "$NODE_PORT",
            "stoker cluster status": KEY + REGISTERED + "stoker cluster status",
        },
        shown=("node_",),
    ),
    "docs/guide/object-store.md": FleetPlan(
        replace={
            "AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…": (
                "AWS_ACCESS_KEY_ID=tests AWS_SECRET_ACCESS_KEY=tests"
            ),
            "https://minio.example": "$AWS_ENDPOINT_URL",
            "s3://bucket/prefix": "s3://models/$PREFIX",
            "stoker doctor ": "stoker doctor --json > doctor.json || true ",
        },
        after='grep -o \'"name": *"bucket[^}]*\' doctor.json; curl $STOKER_BASE_URL/health',
        shown=('"bucket: write","status":"ok"', '"bucket: clock","status":"ok"', '"problem":null'),
    ),
    "docs/guide/several-servers.md": FleetPlan(
        replace=DATABASE,
        after="wc -c < stoker-secret; curl $STOKER_BASE_URL/health",
        shown=("45", '"problem":null'),
    ),
}
"""Plans of pages."""
