"""How the shell blocks about several servers run: with PostgreSQL and a bucket of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.demo.setup import MODELS


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
SOME_MODEL = f"""
    export STOKER_API_KEY=$(cat var/stoker/operator-key)
    export STOKER_ACCOUNT=$(stoker accounts create team --json | grep -o 'acct_[0-9a-z]*')
    stoker artifacts push {MODELS}/tiny-sentiment --name my-model --deploy my-model >/dev/null
    export STOKER_API_KEY=$(stoker keys create --deployment my-model --json | grep -o 'sk-[^"]*')
"""
RESTORED = "$(grep -o 'http:[^\"]*' var/stoker-restored/server.json)"
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
        replace={
            **DATABASE,
            "psql -Atc": SOME_MODEL + "psql -Atc",
            "aws s3 sync": "aws --endpoint-url $AWS_ENDPOINT_URL s3 sync",
            "s3://backups/2026-11-29": "s3://models/$PREFIX-copy",
            "--host=db.inner": "--host=127.0.0.1",
            "postgresql://stoker@db.inner/restored": "${DATABASE%/*}/restored",
            "stoker serve --data-dir var/stoker-restored": (
                "SERVER_PORT=0 stoker serve --data-dir var/stoker-restored"
            ),
        },
        after=f"""
            wc -c < stoker-secret
            curl $STOKER_BASE_URL/health
            curl {RESTORED}/v1/classifications/text -H "Content-Type: application/json" \\
              -H "Authorization: Bearer $STOKER_API_KEY" \\
              -d '{{"model": "my-model", "inputs": "What a lovely day!"}}'
        """,
        shown=("45", '"problem":null', '"label":"positive"'),
    ),
}
"""Plans of pages."""
