"""Tests of the compose files, parsed as their specification requires."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.main import get_command

from stoker.base.config import Settings
from stoker.cli import node
from tests.packaging.conftest import MISSING, ROOT, asked
from tests.packaging.recipe import read_stages
from tests.support import postgres
from tests.support.bucket import moto
from tests.support.deploying import deploy, wait_for
from tests.support.server import running

COMPOSE = ROOT / "compose.yaml"
SINGLE = ROOT / "compose.single.yaml"
MODELS = ROOT / "stoker" / "demo" / "models"
SECRET = "A" * 43 + "="
VARIABLES = {"POSTGRES_PASSWORD": "one", "S3_ACCESS_KEY": "two", "S3_SECRET_KEY": "three"}
PROBE = """
import json, sys
from compose_spec import PyCompose
try:
    compose = PyCompose.from_json(sys.stdin.read())
    compose.validate()
    print(json.dumps(list(compose.services)))
except ValueError as error:
    print(json.dumps(str(error)))
"""


def interpolated(text: str, given: dict[str, str]) -> str:
    """Substitutes variables in the forms that the file uses: `${NAME:-default}` and
    `${NAME:?why}`.
    """

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if name not in given and kind == ":?":
            raise KeyError(f"{name}: {rest}")
        return given.get(name, rest)

    return re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", value, text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = interpolated(COMPOSE.read_text(), VARIABLES)
    assert "$" not in text
    return yaml.safe_load(text)


@pytest.fixture(scope="module")
def gateways(compose: dict[str, Any]) -> list[dict[str, Any]]:
    return [service for name, service in compose["services"].items() if name.startswith("gateway-")]


@MISSING
def test_is_as_the_specification_has_it(compose: dict[str, Any]) -> None:
    """All networks, volumes, configs and secrets that a service names are defined."""
    sections = {name: section for name, section in compose.items() if not name.startswith("x-")}
    assert set(asked(PROBE, sections)) == set(compose["services"])
    # The validator reports an undefined config.
    s3 = {**compose["services"]["s3"], "configs": ["other"]}
    wrong = {**sections, "services": {**compose["services"], "s3": s3}}
    assert "config `other` (used in the `s3` service) is not defined" in asked(PROBE, wrong)


@pytest.mark.parametrize("name", VARIABLES)
def test_no_password_is_ours(name: str) -> None:
    remaining = {variable: value for variable, value in VARIABLES.items() if variable != name}
    with pytest.raises(KeyError, match=r"see docs/containers\.md"):
        interpolated(COMPOSE.read_text(), remaining)
    page = (ROOT / "docs" / "containers.md").read_text()
    assert f"{name}=$(openssl rand" in page


def test_only_the_s3_port_leaves_its_container(compose: dict[str, Any]) -> None:
    """The store's other services require no password, so they stay in the container."""
    command = compose["services"]["s3"]["command"].split()
    assert "-ip.bind=127.0.0.1" in command
    assert "-s3.ip.bind=0.0.0.0" in command
    assert compose["services"]["bucket"]["network_mode"] == "service:s3"


def test_environment_is_settings(gateways: list[dict[str, Any]], tmp_path: Path) -> None:
    assert len(gateways) == 2
    for gateway in gateways:
        fields = {
            name.removeprefix("STOKER_").lower(): value
            for name, value in gateway["environment"].items()
            if name.startswith("STOKER_")
        }
        assert set(fields) <= set(Settings.model_fields)
        assert fields["secret_file"] == f"/run/secrets/{gateway['secrets'][0]}"
        (tmp_path / "secret").write_text(SECRET)
        fields["secret_file"] = str(tmp_path / "secret")
        settings = Settings(_env_file=None, **fields)  # type: ignore[arg-type]
        assert settings.given_secret == SECRET.encode()
        assert settings.resolved_database_url == "postgresql+asyncpg://stoker:one@postgres/stoker"
        # The server receives the secrets only from its file.
        assert SECRET not in str(gateway)


def test_servers_share_all_but_their_folder(gateways: list[dict[str, Any]]) -> None:
    a, b = gateways
    differing = {name for name in a if a[name] != b[name]}
    assert differing == {"ports", "volumes"}
    for gateway in gateways:
        assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
        assert gateway["read_only"] is True
        assert gateway["cap_drop"] == ["ALL"]


class TestRay:
    """Services that only the profile `ray` adds."""

    @pytest.fixture
    def added(self, compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {
            name: service for name, service in compose["services"].items() if "profiles" in service
        }

    def test_nobody_else_has_one(self, added: dict[str, dict[str, Any]]) -> None:
        assert set(added) == {"ray-head", "node-1", "node-2"}
        assert all(service["profiles"] == ["ray"] for service in added.values())

    @pytest.mark.parametrize("runtime", ["local", "ray"])
    def test_servers_are_told(self, runtime: str) -> None:
        variables = VARIABLES if runtime == "local" else {**VARIABLES, "STOKER_RUNTIME": runtime}
        services = yaml.safe_load(interpolated(COMPOSE.read_text(), variables))["services"]
        runtimes = {
            name: service["environment"].get("STOKER_RUNTIME")
            for name, service in services.items()
            if "environment" in service
        }
        assert runtimes["gateway-1"] == runtimes["gateway-2"] == runtime
        # The command `node` sets its runtime itself.
        assert {runtimes[name] for name in ("ray-head", "node-1", "node-2")} == {None}

    def test_share_what_servers_have(
        self, added: dict[str, dict[str, Any]], gateways: list[dict[str, Any]]
    ) -> None:
        shared = {**gateways[0]["environment"]}
        del shared["STOKER_RUNTIME"]
        for name, service in added.items():
            own_environment = (
                {}
                if name == "ray-head"
                else {"STOKER_NODE_ADDRESS": name, "STOKER_NODE_NAME": name}
            )
            logs = {"RAY_ROTATION_MAX_BYTES": "16777216", "RAY_ROTATION_BACKUP_COUNT": "1"}
            assert service["environment"] == {**shared, **logs, **own_environment}
            assert {each.removeprefix("STOKER_").lower() for each in own_environment} <= set(
                Settings.model_fields
            )
            assert service["volumes"] == [f"{name}:/data"]
            for key in ("image", "secrets", "read_only", "tmpfs", "cap_drop", "security_opt"):
                assert service[key] == gateways[0][key]
            # A container's own /dev/shm has 64 MiB, and Ray needs 80.
            assert service["shm_size"] == "256m"
            assert "ports" not in service

    def test_they_meet(self, added: dict[str, dict[str, Any]]) -> None:
        """Our command line accepts the commands. Each health check calls the port on which its
        service listens.
        """
        head = parsed(added["ray-head"]["command"])
        assert f"'127.0.0.1', {head['port']})" in added["ray-head"]["healthcheck"]["test"][-1]
        for name in ("node-1", "node-2"):
            node = parsed(added[name]["command"])
            assert node["address"] == f"ray-head:{head['port']}"
            assert node["listen"] == "0.0.0.0"
            assert f"'127.0.0.1', {node['port']})" in added[name]["healthcheck"]["test"][-1]
            assert added[name]["depends_on"]["ray-head"] == {"condition": "service_healthy"}


def parsed(command: str) -> dict[str, Any]:
    """Returns the parameters that our command line parses from one of our commands."""
    words, cli = command.split(), get_command(node.app)
    assert words.pop(0) == "node"
    with cli.make_context("node", words, resilient_parsing=True) as context:
        name, leaf, rest = cli.resolve_command(context, words)
        with leaf.make_context(name, rest) as leaf_context:
            return leaf_context.params


def test_the_bucket_is_the_one_that_is_made(compose: dict[str, Any]) -> None:
    services, (gateway, *_) = compose["services"], compose["services"].values()
    bucket = gateway["environment"]["STOKER_BLOB_URL"].removeprefix("s3://")
    assert f's3.bucket.create -name {bucket}"' in services["bucket"]["command"][0]
    (identity,) = yaml.safe_load(compose["configs"]["s3"]["content"])["identities"]
    (keys,) = identity["credentials"]
    environment = gateway["environment"]
    assert keys == {
        "accessKey": environment["AWS_ACCESS_KEY_ID"],
        "secretKey": environment["AWS_SECRET_ACCESS_KEY"],
    }
    port = environment["AWS_ENDPOINT_URL"].rpartition(":")[2]
    assert f"-s3.port={port}" in services["s3"]["command"]


def test_versions_are_pinned(compose: dict[str, Any]) -> None:
    images = {service["image"] for service in compose["services"].values()} - {"stoker"}
    assert len(images) == 2
    for image in images:
        assert re.fullmatch(r"docker\.io/[\w./-]+:\d[\w.-]*", image), image


def test_the_image_is_built_of_what_the_recipe_takes(gateways: list[dict[str, Any]]) -> None:
    build = gateways[0]["build"]
    recipe = (ROOT / build["dockerfile"]).read_text()
    assert all(f"ARG {name}=" in recipe for name in build["args"])


@pytest.mark.release
def test_two_servers_of_its_environment(gateways: list[dict[str, Any]], tmp_path: Path) -> None:
    """Both servers run as processes with the file's environment, a real PostgreSQL and an S3
    server. A model that is uploaded to one answers through the other.
    """
    (tmp_path / "secret").write_text(SECRET)
    with postgres.cluster() as cluster, moto(tmp_path / "moto.log") as endpoint:
        bucket = gateways[0]["environment"]["STOKER_BLOB_URL"].removeprefix("s3://")
        httpx.put(f"{endpoint}/{bucket}").raise_for_status()
        addresses = {
            "STOKER_DATABASE_URL": cluster.url,
            "STOKER_SECRET_FILE": str(tmp_path / "secret"),
            "AWS_ENDPOINT_URL": endpoint,
        }
        one, other = ({**gateway["environment"], **addresses} for gateway in gateways)
        with (
            running(tmp_path / "one", **one) as first,
            running(tmp_path / "other", **other) as second,
            first.account() as client,
        ):
            made = deploy(client, MODELS / "tiny-sentiment", "sentiment", readiness="hot")
            wait_for(client, made["id"], "ready")
            key = client.headers["authorization"].removeprefix("Bearer ")
            call = {"model": "sentiment", "inputs": "What a wonderful day"}
            with second.client(key) as at_second:
                answer = at_second.post("/v1/classifications/text", json=call).raise_for_status()
        assert answer.json()[0]["label"] == "positive"
        assert httpx.get(f"{endpoint}/{bucket}").text.count("<Key>") > 1


class TestSingle:
    """The file with one server."""

    @pytest.fixture
    def single(self) -> dict[str, Any]:
        return yaml.safe_load(interpolated(SINGLE.read_text(), {}))

    @MISSING
    def test_is_as_the_specification_has_it(self, single: dict[str, Any]) -> None:
        assert asked(PROBE, single) == ["stoker"]

    def test_is_confined_as_the_others(
        self, single: dict[str, Any], gateways: list[dict[str, Any]]
    ) -> None:
        service = single["services"]["stoker"]
        differing = {name for name in service if service[name] != gateways[0].get(name)}
        assert differing == {"ports", "volumes"}
        assert set(gateways[0]) - set(service) == {"environment", "secrets", "depends_on"}

    def test_volume_is_the_image_s(self, single: dict[str, Any]) -> None:
        service = single["services"]["stoker"]
        last = read_stages()[-1].last
        assert [volume.partition(":")[2] for volume in service["volumes"]] == ["/data"]
        assert last["VOLUME"] == '["/data"]'
        assert service["ports"] == [f"127.0.0.1:8000:{last['EXPOSE']}"]
