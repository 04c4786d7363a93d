"""Test tiers: each test is marked with the most expensive thing that it uses.

| tier | a test of it uses |
|---|---|
| `unit` | Python, models in this process, SQLite |
| `app` | the ASGI app in this process |
| `system` | a real server in its own process |
| `fleet` | PostgreSQL, nodes, Ray, an object store, or the packaging |
| `browser` | Chromium |

`smoke` marks the short tests of each resource against a real server: tests/smoke. `make test` runs
`unit`, `app` and `smoke`; `make test-all` runs everything.
"""

from typing import Any

import pytest

UNIT, APP, SYSTEM, FLEET, BROWSER = TIERS = ("unit", "app", "system", "fleet", "browser")
SMOKE = "smoke"
TYPES = {
    "Browser": BROWSER,
    "Page": BROWSER,
    "tests.cluster.support.Cluster": FLEET,
    "tests.support.postgres.Cluster": FLEET,
    "Server": SYSTEM,
    "httpx.Client": SYSTEM,
    "openai.OpenAI": SYSTEM,
    "tests.agents.support.Account": SYSTEM,
    "tests.support.app.App": APP,
    "httpx.AsyncClient": APP,
}
"""Tier of a test with a fixture that returns this type."""
FIXTURES = {"postgres_url": FLEET, "s3": FLEET, "base_url": SYSTEM}
"""Tier of a test with a fixture of this name. Its type tells nothing."""
IMPORTS = {"running": SYSTEM, "Server": SYSTEM, "serving": APP}
"""Tier of a test in a module that imports this name: the test may start it itself."""
FOLDERS = {
    "tests/demo/console/": BROWSER,
    "tests/buckets/": FLEET,
    "tests/cluster/": FLEET,
    "tests/nodes/": FLEET,
    "tests/packaging/": FLEET,
    "tests/ray/": FLEET,
    "tests/servers/": FLEET,
    "tests/store/test_connections.py": FLEET,
    "tests/store/test_postgres.py": FLEET,
    "tests/demo/": SYSTEM,
    "tests/install/": SYSTEM,
    "tests/launch/": SYSTEM,
    "tests/server/test_blocked_workers.py": SYSTEM,
    "tests/smoke/": SYSTEM,
    "tests/test_bench_gpu_rows.py": SYSTEM,
    "tests/test_bench_gpu_stop.py": SYSTEM,
    "tests/test_faults.py": SYSTEM,
    "tests/test_leaks.py": SYSTEM,
    "tests/test_plugins.py": SYSTEM,
    "tests/test_template.py": SYSTEM,
}
"""Least tier of a folder's tests."""


def tier_of(item: pytest.Function) -> str:
    """Returns the tier of a collected test."""
    tiers = {UNIT}
    tiers |= {tier for folder, tier in FOLDERS.items() if item.nodeid.startswith(folder)}
    tiers |= {tier for name, tier in IMPORTS.items() if name in vars(item.module)}
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    texts = {value for value in parameters.values() if isinstance(value, str)}
    if "postgresql" in texts:
        tiers.add(FLEET)
    has_sqlite = "sqlite" in texts
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        # Fixtures with both databases request PostgreSQL's only for that parameter.
        if name in FIXTURES and not (has_sqlite and FIXTURES[name] == FLEET):
            tiers.add(FIXTURES[name])
        returned = str(definitions[-1].func.__annotations__.get("return"))
        tiers |= {tier for kind, tier in TYPES.items() if kind in returned}
    return max(tiers, key=TIERS.index)


def mark(item: pytest.Item) -> None:
    """Marks a collected test with its tier."""
    if isinstance(item, pytest.Function):
        item.add_marker(tier_of(item))
        if item.nodeid.startswith("tests/smoke/"):
            item.add_marker(SMOKE)


_running: list[str] = []
"""Tier of the test that runs, if any."""


def begin(item: pytest.Item) -> None:
    """Notes the tier of the test that runs next."""
    _running[:] = [marker.name for marker in item.iter_markers() if marker.name in TIERS]


def require(tier: str) -> None:
    """Raises `AssertionError` if the test that runs is marked with a lower tier than this."""
    for name in _running:
        assert TIERS.index(name) >= TIERS.index(tier), (
            f"a test marked '{name}' uses what only tests marked '{tier}' may use: "
            "add its fixture or folder to tests/support/tiers.py"
        )
