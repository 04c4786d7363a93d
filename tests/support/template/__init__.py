"""Starts the servers of a test run as forks of a process that has imported their libraries.

A server's imports take two seconds of a core, and those of its engine host three. A run of all
tests starts about 180 servers and 110 engine hosts. With pytest-xdist, each test process starts one
template (`process`). The template forks the servers, and each server's first engine host. Both run
their ordinary `main` with their own arguments, environment, working folder and descriptors. Their
parent is the process that would have started them. A server forgets the engines' libraries, so an
import of torch in a gateway fails.

Without pytest-xdist, all processes start as users start them. CI retries failed tests in this way.
`STOKER_TEST_TEMPLATE=1` or `0` overrides the choice. The template never forks servers with another
interpreter, another runtime, or variables that libraries may read on import. So tests of
installations, plug-ins and walls start real servers.
"""

from tests.support.template.starting import Forked, can_fork

__all__ = ["Forked", "can_fork"]
