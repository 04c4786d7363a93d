"""Whether the server of this container works, by its exit code and a line that says why not.

With nothing but Python, and by the settings that the server has: `stoker` would take a second of a
core to import, every ten seconds.
"""

import http.client
import json
import os
import sys

TIMEOUT_S = 6
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where the server listens


def main() -> None:
    host = os.environ.get("STOKER_HOST", "127.0.0.1")
    port = int(os.environ.get("STOKER_PORT", "8000"))
    # One that the server answers to; a pattern begins with `*.`.
    name = json.loads(os.environ.get("STOKER_ALLOWED_HOSTS", '["*"]'))[0]
    headers = {} if name == "*" else {"host": name.replace("*", "health")}
    # Not urllib: that would go through a proxy which the environment names.
    connection = http.client.HTTPConnection(ANY.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse()
        content = answer.read(4096).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"nobody answers at {host}:{port}: {error}")
    finally:
        connection.close()
    if answer.status != http.client.OK:
        sys.exit(f"{answer.status}: {content}")


if __name__ == "__main__":
    main()
