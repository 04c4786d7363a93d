"""The chart, rendered by Helm's own library, and held to Kubernetes' schemas."""

import json
import re
from typing import Any

import pytest
import yaml

from stoker.base.config import Settings
from tests.packaging.conftest import MISSING, ROOT, asked

CHART = ROOT / "deploy" / "helm" / "stoker"
SECRET = "A" * 43 + "="
LEAST: dict[str, Any] = {
    "database": {"url": "postgresql+asyncpg://stoker:pw@db/stoker"},
    "secret": {"value": SECRET},
    "blobs": {"url": "s3://bucket/prefix"},
}
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example/stoker", "tag": "1.2", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3,
    "database": {"existingSecret": "db", "key": "url"},
    "secret": {"existingSecret": "sealing", "key": "text"},
    "blobs": {
        "url": "s3://bucket",
        "environment": {"AWS_REGION": "eu-central-1", "AWS_ENDPOINT_URL": "https://s3.example"},
        "existingSecret": "bucket",
    },
    "settings": {
        "ALLOWED_HOSTS": ["models.example", "*.inner.example"],
        "QUOTA_KEYS": 1_000_000,
        "HOT_MEMORY_SHARE": 0.5,
        "PRELOAD": False,
        "PUBLIC_URL": "https://models.example",
    },
    "data": {"claim": True, "size": "1Ti", "storageClass": "fast"},
    "resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": 1}},
    "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a.example/b": "c"}},
    "serviceAccount": {"annotations": {"eks.example/role": "stoker"}},
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
    "podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"},
    "probeHost": "models.example",
    "podAnnotations": {"d.example/e": "f"},
    "nodeSelector": {"pool": "models"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}
BOTH = pytest.mark.parametrize("values", [LEAST, FULL], ids=["least", "full"])

RENDER = """
import json, sys
import helm_python as helm
chart, values, name = json.load(sys.stdin)
try:
    with helm.Chart.load(chart) as found:
        found.validate_schema(values)
        print(json.dumps({"files": found.render(values, name=name, namespace="prod")}))
except helm.HelmError as error:
    print(json.dumps({"error": str(error)}))
"""
LINT = """
import json, sys
import helm_python as helm
chart, values = json.load(sys.stdin)
print(json.dumps(helm.lint(chart, values, strict=True)))
"""
VALIDATE = """
import json, sys
import kubernetes_validate as k8s
documents, found = json.load(sys.stdin), []
for version in k8s.utils.all_versions():
    for one in documents:
        try:
            k8s.validate(one, version, strict=True)
        except Exception as error:
            found.append([version, one["kind"], getattr(error, "message", str(error))])
print(json.dumps([k8s.utils.all_versions(), found]))
"""

pytestmark = MISSING


def rendered(values: dict[str, Any], name: str = "models") -> list[dict[str, Any]]:
    found = asked(RENDER, [str(CHART), values, name])
    assert "error" not in found, found
    files = {path: text for path, text in found["files"].items() if path.endswith(".yaml")}
    # Parsed by a reader that knows nothing of templates.
    return [one for text in files.values() for one in yaml.safe_load_all(text) if one]


def refused(values: dict[str, Any]) -> str:
    return asked(RENDER, [str(CHART), values, "models"])["error"]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [one for one in documents if one["kind"] == kind]
    return found


@BOTH
class TestDocuments:
    def test_lint_finds_nothing(self, values: dict[str, Any]) -> None:
        report = asked(LINT, [str(CHART), values])
        assert report["total_charts_linted"] == 1
        # An icon is recommended: information, no warning.
        assert [one for one in report["messages"] if one["severity"] > 1] == []
        assert not report["errors"]

    def test_kubernetes_takes_them(self, values: dict[str, Any]) -> None:
        """Every release that there are schemas of, with no field that it does not know."""
        documents = rendered(values)
        versions, wrong = asked(VALIDATE, documents)
        assert wrong == []
        least = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
        assert f">={versions[0]}" in least

    def test_what_is_named_is_there(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        pod = of_kind(documents, "Deployment")["spec"]["template"]
        selector = of_kind(documents, "Deployment")["spec"]["selector"]["matchLabels"]
        for found in (
            selector,
            of_kind(documents, "Service")["spec"]["selector"],
            of_kind(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ):
            assert found and found.items() <= pod["metadata"]["labels"].items()
        assert (
            pod["spec"]["serviceAccountName"]
            == of_kind(documents, "ServiceAccount")["metadata"]["name"]
        )
        (container,) = pod["spec"]["containers"]
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in pod["spec"]["volumes"]}
        (port,) = of_kind(documents, "Service")["spec"]["ports"]
        assert port["targetPort"] in {one["name"] for one in container["ports"]}
        config = of_kind(documents, "ConfigMap")["metadata"]["name"]
        assert {"configMapRef": {"name": config}} in container["envFrom"]

    def test_pods_can_do_little(self, values: dict[str, Any]) -> None:
        spec = of_kind(rendered(values), "Deployment")["spec"]["template"]["spec"]
        recipe = (ROOT / "Containerfile").read_text()
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in recipe
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["automountServiceAccountToken"] is False
        # The variables of a service called stoker would be taken for settings.
        assert spec["enableServiceLinks"] is False
        (data,) = [one for one in container["volumeMounts"] if one["name"] == "data"]
        assert f'VOLUME ["{data["mountPath"]}"]' in recipe


class TestSettings:
    @pytest.fixture
    def settings(self, tmp_path: Any) -> Any:
        def read(values: dict[str, Any]) -> Settings:
            data = of_kind(rendered(values), "ConfigMap")["data"]
            given = {
                name.removeprefix("STOKER_").lower(): value
                for name, value in data.items()
                if name.startswith("STOKER_")
            }
            assert set(given) <= set(Settings.model_fields)
            assert set(data) - {f"STOKER_{name.upper()}" for name in given} == set(
                values["blobs"].get("environment", {})
            )
            file = tmp_path / "secret"
            file.write_text(SECRET)
            given["secret_file"] = str(file)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in given.items():
                    patch.setenv(f"STOKER_{name.upper()}", value)
                return Settings(_env_file=None)  # type: ignore[call-arg]

        return read

    def test_are_those_of_the_server(self, settings: Any) -> None:
        found = settings(FULL)
        given = {name: getattr(found, name.lower()) for name in FULL["settings"]}
        assert given == FULL["settings"]
        assert found.blob_url == FULL["blobs"]["url"]

    def test_the_least(self, settings: Any) -> None:
        """What models may take leaves room in the pod's own folder."""
        found = settings(LEAST)
        volumes = of_kind(rendered(LEAST), "Deployment")["spec"]["template"]["spec"]["volumes"]
        (limit,) = [one["emptyDir"]["sizeLimit"] for one in volumes if one["name"] == "data"]
        assert found.model_cache_gib < int(limit.removesuffix("Gi"))


class TestSecrets:
    def test_are_made_of_what_is_given(self) -> None:
        documents = rendered(LEAST)
        secret = of_kind(documents, "Secret")
        assert secret["stringData"] == {
            "database-url": LEAST["database"]["url"],
            "stoker-secret": SECRET,
        }
        spec = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
        (variable,) = spec["containers"][0]["env"]
        assert variable == {
            "name": "STOKER_DATABASE_URL",
            "valueFrom": {
                "secretKeyRef": {"name": secret["metadata"]["name"], "key": "database-url"}
            },
        }
        self.check_file(documents, secret["metadata"]["name"], "stoker-secret")
        # Nothing of it stands where everybody may read.
        others = [one for one in documents if one["kind"] != "Secret"]
        assert SECRET not in json.dumps(others)
        assert ":pw@" not in json.dumps(others)

    def test_or_are_there(self) -> None:
        documents = rendered(FULL)
        assert [one for one in documents if one["kind"] == "Secret"] == []
        spec = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
        (variable,) = spec["containers"][0]["env"]
        assert variable["valueFrom"] == {"secretKeyRef": {"name": "db", "key": "url"}}
        assert {"secretRef": {"name": "bucket"}} in spec["containers"][0]["envFrom"]
        self.check_file(documents, "sealing", "text")

    def test_one_of_each(self) -> None:
        documents = rendered({**LEAST, "secret": FULL["secret"]})
        assert list(of_kind(documents, "Secret")["stringData"]) == ["database-url"]
        self.check_file(documents, "sealing", "text")

    def check_file(self, documents: list[dict[str, Any]], name: str, key: str) -> None:
        """The setting leads to the key of that Secret."""
        path = of_kind(documents, "ConfigMap")["data"]["STOKER_SECRET_FILE"]
        spec = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
        (volume,) = [one["secret"] for one in spec["volumes"] if one["name"] == "secret"]
        (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "secret"]
        assert volume["secretName"] == name
        (item,) = volume["items"]
        assert (item["key"], f"{mount['mountPath']}/{item['path']}") == (key, path)


class TestProbes:
    @pytest.mark.parametrize(("values", "host"), [(LEAST, None), (FULL, "models.example")])
    def test_ask_what_needs_no_key(self, values: dict[str, Any], host: str | None) -> None:
        spec = of_kind(rendered(values), "Deployment")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        for probe, path in (
            ("startupProbe", "/health"),
            ("readinessProbe", "/ready"),
            ("livenessProbe", "/docs"),
        ):
            asked_for = container[probe]["httpGet"]
            assert asked_for["path"] == path
            names = [one["value"] for one in asked_for.get("httpHeaders", ())]
            assert names == ([host] if host else [])


def test_a_service_is_called_as_its_release() -> None:
    assert of_kind(rendered(LEAST, "stoker"), "Service")["metadata"]["name"] == "stoker"
    assert of_kind(rendered(LEAST), "Service")["metadata"]["name"] == "models-stoker"


class TestValues:
    @pytest.mark.parametrize(
        ("left_out", "why"),
        [
            ("database", "Set database.url, or database.existingSecret."),
            ("secret", "Set secret.value, or secret.existingSecret."),
            ("blobs", "Set blobs.url"),
        ],
    )
    def test_says_what_has_to_be_set(self, left_out: str, why: str) -> None:
        """And takes the values as they come with the chart, which have none of it."""
        assert why in refused({name: one for name, one in LEAST.items() if name != left_out})

    @pytest.mark.parametrize(
        "wrong",
        [
            {"replica": 2},
            {"replicas": -1},
            {"replicas": "2"},
            {"secret": {"value": "short"}},
            {"database": {"url": "sqlite+aiosqlite:///db"}},
            {"blobs": {"url": "file:///blobs"}},
            {"settings": {"log_level": "info"}},
            {"settings": {"SECRET": SECRET}},
            {"settings": {"DATABASE_URL": "postgresql+asyncpg://db/stoker"}},
            {"settings": {"JOBS_AT_ONCE": None, "HOST": "::"}},
            {"strategy": {"type": "Sometimes"}},
            {"data": {"size": "100GB"}},
            {"resources": {"limit": {}}},
            {"probeHost": "a b"},
        ],
        ids=str,
    )
    def test_refuses_what_is_none(self, wrong: dict[str, Any]) -> None:
        assert "at '" in refused({**LEAST, **wrong}), "the schema's place of what is wrong"

    def test_all_of_them_are_used_and_explained(self) -> None:
        text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        used = set(re.findall(r"\.Values\.([\w.]*\w)", text))
        for name in used:
            found: Any = values
            for part in name.split("."):
                assert part in found, name
                found = found[part]
        assert {name.split(".")[0] for name in used} == set(values)

    def test_the_page_has_an_example_that_works(self) -> None:
        page = (ROOT / "docs" / "containers.md").read_text()
        example = page.split("<<END\n")[1].split("\nEND\n")[0]
        documents = rendered(yaml.safe_load(example))
        data = of_kind(documents, "ConfigMap")["data"]
        assert json.loads(data["STOKER_ALLOWED_HOSTS"]) == ["models.example"]


def test_it_is_of_this_release() -> None:
    import stoker

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == stoker.__version__
