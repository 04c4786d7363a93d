"""Checks of a server and of the caller's API key for `stoker doctor`."""

from collections.abc import Iterator

import stoker
from stoker.cli import hints
from stoker.cli.context import Context
from stoker.cli.key_scope import key_scope
from stoker.cli.settings import read_settings
from stoker.cli.verdicts import UPGRADE_HINT, DoctorCheck, DoctorVerdict
from stoker.client.client import Client
from stoker.client.errors import StokerError, UnreachableError, WrongUseError
from stoker.client.settings import DEFAULT_BASE_URL

_NO_KEY_HINT = "Sign in with 'stoker login', or set STOKER_API_KEY."
_FILES_HINT = "'stoker deployments list' shows which failed. Restore the data folder from a backup."


def shares_database() -> bool:
    """Returns True if this machine uses PostgreSQL, as the machines of a fleet do."""
    try:
        url = read_settings().database_url
    except WrongUseError:
        # `stoker doctor` reports it among the checks of the machine.
        return False
    return url is not None and url.startswith("postgresql")


def _is_of_node() -> bool:
    """True if the data folder belongs to a node, which needs no local server."""
    return shares_database() and (read_settings().data_dir / "node-id").exists()


def checks(settings: Context) -> Iterator[DoctorCheck]:
    try:
        yield from _server_checks(settings)
    except UnreachableError as error:
        if settings.base_url == DEFAULT_BASE_URL and _is_of_node():
            hint = "Set STOKER_BASE_URL to a server of the fleet to check it as well."
            yield DoctorCheck("server", DoctorVerdict.WARN, "no server on this node", hint)
        else:
            yield DoctorCheck(
                "server", DoctorVerdict.FAIL, hints.message(error), hints.hint(error) or ""
            )
    except StokerError as error:
        yield DoctorCheck(
            "server", DoctorVerdict.FAIL, hints.message(error), hints.hint(error) or ""
        )


def _server_checks(settings: Context) -> Iterator[DoctorCheck]:
    server = Client(settings.base_url, settings.api_key)
    status, body = server.health("/health")
    if status == 200:
        yield _version(str(body.get("version")))
        if warning := body.get("warning"):
            yield DoctorCheck("HTTP workers", DoctorVerdict.WARN, warning, "See the server's log.")
    else:
        problem = body.get("problem") or f"returned status {status}"
        yield DoctorCheck("server", DoctorVerdict.FAIL, problem, "See the server's log.")
    status, body = server.health("/ready")
    if status == 200:
        yield DoctorCheck("readiness", DoctorVerdict.OK, "ready to start models")
    else:
        problem = body.get("problem") or f"returned status {status}"
        yield DoctorCheck("readiness", DoctorVerdict.WARN, problem, "Try again in a moment.")
    if warning := body.get("warning"):
        yield DoctorCheck("model files", DoctorVerdict.FAIL, warning, _FILES_HINT)
    if settings.api_key:
        yield from _key_checks(server)
    else:
        yield DoctorCheck("API key", DoctorVerdict.WARN, "not set", _NO_KEY_HINT)


def _version(version: str) -> DoctorCheck:
    if version == stoker.__version__:
        return DoctorCheck("server", DoctorVerdict.OK, f"version {version}")
    message = f"version {version}, this command is {stoker.__version__}"
    if not shares_database():
        return DoctorCheck("server", DoctorVerdict.OK, message)
    return DoctorCheck("server", DoctorVerdict.WARN, message, UPGRADE_HINT)


def _key_checks(server: Client) -> Iterator[DoctorCheck]:
    owner = key_scope(server)
    if owner is None:
        hint = "Sign in again with 'stoker login', or set a different STOKER_API_KEY."
        yield DoctorCheck("API key", DoctorVerdict.FAIL, "rejected", hint)
        return
    yield DoctorCheck("API key", DoctorVerdict.OK, f"valid, scope {owner.scope}")
    if owner.scope != "operator":
        yield DoctorCheck("models", DoctorVerdict.OK, str(len(list(server.pages("/v1/models")))))
