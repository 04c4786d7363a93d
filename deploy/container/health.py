"""Checks the server of this container. Exits with 1 and prints the reason if it does not work.

Reads the server's settings from the environment and uses the standard library only: importing
`stoker` every ten seconds would take a second of a core each time.
"""

import http.client
import json
import os
import sys

TIMEOUT_S = 6
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the server's addresses


def main() -> None:
    host = os.environ.get("STOKER_HOST", "127.0.0.1")
    port = int(os.environ.get("STOKER_PORT", "8000"))
    # A host that the server accepts. A pattern begins with `*.`.
    name = json.loads(os.environ.get("STOKER_ALLOWED_HOSTS", '["*"]'))[0]
    headers = {} if name == "*" else {"host": name.replace("*", "health")}
    # urllib would use the proxy of the environment.
    connection = http.client.HTTPConnection(ANY.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse()
        content = answer.read(4096).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"no answer from {host}:{port}: {error}")
    finally:
        connection.close()
    if answer.status != http.client.OK:
        sys.exit(f"{answer.status}: {content}")


if __name__ == "__main__":
    main()
