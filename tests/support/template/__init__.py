"""Starts the servers of a test run as forks of a process that has their libraries imported.

A server imports for two seconds of a core, and its engine host for three. Hundreds of tests start
both. With pytest-xdist, each test process starts one template (`process`) instead. The template
forks a server for each start, and that server's engine host. Both then run their ordinary `main`
with their own arguments, environment, folder and descriptors. Both are children of the process that
a real start would make their parent. The server forgets the engine's libraries: an import of torch
in a gateway fails.

Without pytest-xdist, and so when CI retries a failed test, all processes start as users start them.
`STOKER_TEST_TEMPLATE` overrides that: `1` or `0`.
"""

from tests.support.template.starting import Forked, can_fork

__all__ = ["Forked", "can_fork"]
