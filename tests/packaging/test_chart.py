"""The chart is rendered by Helm's own library and validated with Kubernetes' schemas."""

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
    result = asked(RENDER, [str(CHART), values, name])
    assert "error" not in result, result
    files = {path: text for path, text in result["files"].items() if path.endswith(".yaml")}
    # Parsed by a reader without support for templates.
    return [
        document for text in files.values() for document in yaml.safe_load_all(text) if document
    ]


def refused(values: dict[str, Any]) -> str:
    return asked(RENDER, [str(CHART), values, "models"])["error"]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (matching,) = [document for document in documents if document["kind"] == kind]
    return matching


@BOTH
class TestDocuments:
    def test_lint_finds_nothing(self, values: dict[str, Any]) -> None:
        report = asked(LINT, [str(CHART), values])
        assert report["total_charts_linted"] == 1
        # Lint recommends an icon as information, not as a warning.
        assert [message for message in report["messages"] if message["severity"] > 1] == []
        assert not report["errors"]

    def test_kubernetes_takes_them(self, values: dict[str, Any]) -> None:
        """The manifests are valid for every release with known schemas and have no unknown
        field.
        """
        documents = rendered(values)
        versions, wrong = asked(VALIDATE, documents)
        assert wrong == []
        least = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
        assert f">={versions[0]}" in least

    def test_what_is_named_is_there(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        pod = of_kind(documents, "Deployment")["spec"]["template"]
        selector = of_kind(documents, "Deployment")["spec"]["selector"]["matchLabels"]
        for labels in (
            selector,
            of_kind(documents, "Service")["spec"]["selector"],
            of_kind(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ):
            assert labels and labels.items() <= pod["metadata"]["labels"].items()
        assert (
            pod["spec"]["serviceAccountName"]
            == of_kind(documents, "ServiceAccount")["metadata"]["name"]
        )
        (container,) = pod["spec"]["containers"]
        mounted = {entry["name"] for entry in container["volumeMounts"]}
        assert mounted == {entry["name"] for entry in pod["spec"]["volumes"]}
        (port,) = of_kind(documents, "Service")["spec"]["ports"]
        assert port["targetPort"] in {entry["name"] for entry in container["ports"]}
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
        # Kubernetes would set variables of a service named stoker, which would be read as settings.
        assert spec["enableServiceLinks"] is False
        (data,) = [mount for mount in container["volumeMounts"] if mount["name"] == "data"]
        assert f'VOLUME ["{data["mountPath"]}"]' in recipe

    def test_the_cluster_chooses_the_user(self, values: dict[str, Any]) -> None:
        """As OpenShift requires. Its users are never root."""
        pod = of_kind(rendered({**values, "user": None}), "Deployment")["spec"]["template"]
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


class TestSettings:
    @pytest.fixture
    def settings(self, tmp_path: Any) -> Any:
        def read(values: dict[str, Any]) -> Settings:
            data = of_kind(rendered(values), "ConfigMap")["data"]
            fields = {
                name.removeprefix("STOKER_").lower(): value
                for name, value in data.items()
                if name.startswith("STOKER_")
            }
            assert set(fields) <= set(Settings.model_fields)
            assert set(data) - {f"STOKER_{name.upper()}" for name in fields} == set(
                values["blobs"].get("environment", {})
            )
            file = tmp_path / "secret"
            file.write_text(SECRET)
            fields["secret_file"] = str(file)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in fields.items():
                    patch.setenv(f"STOKER_{name.upper()}", value)
                return Settings(_env_file=None)  # type: ignore[call-arg]

        return read

    def test_are_those_of_the_server(self, settings: Any) -> None:
        loaded = settings(FULL)
        actual = {name: getattr(loaded, name.lower()) for name in FULL["settings"]}
        assert actual == FULL["settings"]
        assert loaded.blob_url == FULL["blobs"]["url"]

    def test_the_least(self, settings: Any) -> None:
        """The models' limit leaves room in the pod's own folder."""
        loaded = settings(LEAST)
        volumes = of_kind(rendered(LEAST), "Deployment")["spec"]["template"]["spec"]["volumes"]
        (limit,) = [
            volume["emptyDir"]["sizeLimit"] for volume in volumes if volume["name"] == "data"
        ]
        assert loaded.model_cache_gib < int(limit.removesuffix("Gi"))


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
        # No secret appears in documents that are not Secrets.
        public_documents = [document for document in documents if document["kind"] != "Secret"]
        assert SECRET not in json.dumps(public_documents)
        assert ":pw@" not in json.dumps(public_documents)

    def test_or_are_there(self) -> None:
        documents = rendered(FULL)
        assert [document for document in documents if document["kind"] == "Secret"] == []
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
        """Checks that the setting is the path of the key in that Secret."""
        path = of_kind(documents, "ConfigMap")["data"]["STOKER_SECRET_FILE"]
        spec = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
        (volume,) = [entry["secret"] for entry in spec["volumes"] if entry["name"] == "secret"]
        (mount,) = [
            entry for entry in spec["containers"][0]["volumeMounts"] if entry["name"] == "secret"
        ]
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
            names = [header["value"] for header in asked_for.get("httpHeaders", ())]
            assert names == ([host] if host else [])


class TestRollout:
    def test_an_old_pod_ends_after_a_new_one_is_ready(self) -> None:
        spec = of_kind(rendered(LEAST), "Deployment")["spec"]
        assert spec["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
        }

    def test_the_pod_may_drain_and_finish_its_work(self) -> None:
        documents = rendered(LEAST)
        drain_s = int(of_kind(documents, "ConfigMap")["data"]["STOKER_DRAIN_S"])
        grace_s = Settings.model_fields["stop_grace_s"].default
        pod = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
        probe = pod["containers"][0]["readinessProbe"]
        # A proxy that probes as the kubelet does learns of the drain before it ends.
        assert drain_s > probe["periodSeconds"]
        assert pod["terminationGracePeriodSeconds"] > drain_s + 2 * grace_s

    def test_recreate_has_no_values_of_a_rolling_update(self) -> None:
        values = {**LEAST, "strategy": {"type": "Recreate"}}
        assert of_kind(rendered(values), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
        assert asked(VALIDATE, rendered(values))[1] == []

    def test_nodes_have_a_strategy_and_a_budget_of_their_own(self) -> None:
        rolling = {"maxUnavailable": 1, "maxSurge": 0}
        nodes = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
        documents = rendered({**LEAST, "runtime": "nodes", "nodes": nodes})
        (node_spec,) = [
            document["spec"]
            for document in documents
            if document["kind"] == "Deployment" and document["metadata"]["name"].endswith("-nodes")
        ]
        assert node_spec["strategy"]["rollingUpdate"] == rolling
        budgets = [one["spec"] for one in documents if one["kind"] == "PodDisruptionBudget"]
        assert [budget["maxUnavailable"] for budget in budgets] == [1, 1]
        labels = node_spec["template"]["metadata"]["labels"]
        selectors = [budget["selector"]["matchLabels"] for budget in budgets]
        assert sum(selector.items() <= labels.items() for selector in selectors) == 1


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
        """Missing values are rejected with a reason. The chart's default values contain none of
        them.
        """
        assert why in refused({name: value for name, value in LEAST.items() if name != left_out})

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
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "one"}}},
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
            section: Any = values
            for part in name.split("."):
                assert part in section, name
                section = section[part]
        assert {name.split(".")[0] for name in used} == set(values)

    def test_the_page_has_an_example_that_works(self) -> None:
        page = (ROOT / "docs" / "kubernetes.md").read_text()
        example = page.split("<<END\n")[1].split("\nEND\n")[0]
        documents = rendered(yaml.safe_load(example))
        data = of_kind(documents, "ConfigMap")["data"]
        assert json.loads(data["STOKER_ALLOWED_HOSTS"]) == ["models.example"]


def test_it_is_of_this_release() -> None:
    import stoker

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == stoker.__version__
