"""Tests of the chart with separate pods for replicas: the runtime `nodes`, and `ray` with a
RayCluster.
"""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from stoker.base.config import MIB, Settings
from stoker.runtime.machine_memory import SHARE
from tests.packaging.conftest import MISSING, ROOT, asked
from tests.packaging.kuberay import SCHEMA
from tests.packaging.test_chart import (
    CHART,
    FULL,
    LEAST,
    LINT,
    SECRET,
    VALIDATE,
    of_kind,
    refused,
    rendered,
)

TOKEN = "0123456789abcdef" * 2
PLACED = {
    "nodeSelector": {"pool": "gpus"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}
NODES_LEAST: dict[str, Any] = {**LEAST, "runtime": "nodes"}
NODES_FULL: dict[str, Any] = {
    **FULL,
    "runtime": "nodes",
    "nodes": {
        "replicas": 5,
        "resources": {"limits": {"memory": "3Ti", "nvidia.com/gpu": 1}},
        **PLACED,
    },
}
RAY_LEAST: dict[str, Any] = {**LEAST, "runtime": "ray", "ray": {"token": {"value": TOKEN}}}
RAY_FULL: dict[str, Any] = {
    **NODES_FULL,
    "runtime": "ray",
    "ray": {
        "autoscaling": {"minReplicas": 0, "maxReplicas": 9, "idleTimeoutSeconds": 60},
        "token": {"existingSecret": "joining", "key": "text"},
        "head": {"resources": {"limits": {"cpu": 2, "memory": "3Gi"}}},
    },
}
RAY_FIXED: dict[str, Any] = {
    **RAY_FULL,
    "ray": {**RAY_FULL["ray"], "autoscaling": {"enabled": False}},
}
ALL = {
    "nodes-least": NODES_LEAST,
    "nodes-full": NODES_FULL,
    "ray-least": RAY_LEAST,
    "ray-full": RAY_FULL,
    "ray-fixed": RAY_FIXED,
}
OF_ALL = pytest.mark.parametrize("values", ALL.values(), ids=ALL)
OF_RAY = pytest.mark.parametrize(
    "values", [RAY_LEAST, RAY_FULL, RAY_FIXED], ids=["least", "full", "fixed"]
)

pytestmark = MISSING


def groups(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the groups of the head and the nodes."""
    spec = of_kind(documents, "RayCluster")["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def node_pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the template of the pods that run replicas."""
    templates = [
        document["spec"]["template"]
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", "models-stoker-nodes")
    ]
    return templates[0] if templates else groups(documents)[1]["template"]


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns all pod templates."""
    templates = [
        document["spec"]["template"] for document in documents if document["kind"] == "Deployment"
    ]
    clusters = [document for document in documents if document["kind"] == "RayCluster"]
    return [
        *templates,
        *(group["template"] for document in clusters for group in groups([document])),
    ]


def is_selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector["matchLabels"].items() <= labels.items()


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom"))
        for variable in container["env"]
    }


@OF_ALL
class TestDocuments:
    def test_lint_finds_nothing(self, values: dict[str, Any]) -> None:
        report = asked(LINT, [str(CHART), values])
        assert [message for message in report["messages"] if message["severity"] > 1] == []
        assert not report["errors"]

    def test_kubernetes_takes_them(self, values: dict[str, Any]) -> None:
        """The manifests are valid. KubeRay's own kind is validated by its pods."""
        documents = rendered(values)
        made = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                **one,
                "metadata": {**one["metadata"], "name": "one"},
            }
            for one in pods(documents)
        ]
        ours = [one for one in documents if one["kind"] != "RayCluster"]
        _, wrong = asked(VALIDATE, [*ours, *made])
        assert wrong == []

    def test_servers_are_as_they_are_without(self, values: dict[str, Any]) -> None:
        alone = {
            name: value for name, value in values.items() if name not in ("runtime", "nodes", "ray")
        }

        def spec(documents: list[dict[str, Any]]) -> dict[str, Any]:
            (deployment_spec,) = [
                document["spec"]
                for document in documents
                if document["kind"] == "Deployment"
                and not document["metadata"]["name"].endswith("-nodes")
            ]
            del deployment_spec["template"]["metadata"]["annotations"]
            return deployment_spec

        documents, local_documents = rendered(values), rendered(alone)
        assert spec(documents) == spec(local_documents)
        assert of_kind(documents, "ConfigMap")["data"] == {
            **of_kind(local_documents, "ConfigMap")["data"],
            "STOKER_RUNTIME": values["runtime"],
        }

    def test_requests_go_to_servers_alone(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        for kind, selector in (
            ("Service", lambda resource: resource["spec"]["selector"]),
            ("PodDisruptionBudget", lambda resource: resource["spec"]["selector"]["matchLabels"]),
        ):
            (resource,) = [
                document
                for document in documents
                if document["kind"] == kind and not document["metadata"]["name"].endswith("-nodes")
            ]
            selected = selector(resource).items()
            matched = [
                pod for pod in pods(documents) if selected <= pod["metadata"]["labels"].items()
            ]
            assert len(matched) == 1

    def test_nodes_are_reached_by_servers_and_their_ray_alone(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
        labels = [one["metadata"]["labels"] for one in pods(documents)]
        by_name = {one["app.kubernetes.io/name"]: one for one in labels}
        stranger = {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": "other"}

        def ports(source: dict[str, str], target: dict[str, str]) -> list[str]:
            """Returns the ports of a target that a source can reach. `any` means all ports."""
            applied = [
                candidate for candidate in policies if is_selected(candidate["podSelector"], target)
            ]
            if not applied:
                return ["any"]
            return [
                port["port"]
                for policy in applied
                for rule in policy["ingress"]
                if any(is_selected(peer["podSelector"], source) for peer in rule["from"])
                for port in rule.get("ports", [{"port": "any"}])
            ]

        server, node = by_name["stoker"], by_name["stoker-node"]
        assert ports(server, node) == ["node"]
        assert ports(stranger, node) == []
        assert ports(stranger, server) == ["any"]
        head = by_name.get("stoker-head")
        assert (head is not None) == (values["runtime"] == "ray")
        assert ports(node, node) == (["any"] if head else [])
        if head:
            assert ports(node, head) == ports(head, node) == ["any"]
            assert ports(server, head) == ports(stranger, head) == []

    def test_pods_can_do_little(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        scaled = values["runtime"] == "ray" and values is not RAY_FIXED
        for template in pods(documents):
            spec = template["spec"]
            (container,) = spec["containers"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert spec["enableServiceLinks"] is False
            # Only the autoscaler next to the head needs the Kubernetes API.
            speaks = scaled and container["name"] == "ray-head"
            assert spec["automountServiceAccountToken"] is speaks
            assert ("serviceAccountName" in spec) is not speaks
            mounted = {entry["name"] for entry in container["volumeMounts"]}
            assert mounted == {entry["name"] for entry in spec["volumes"]}

    def test_nothing_secret_is_in_plain_text(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        public_text = json.dumps(
            [document for document in documents if document["kind"] != "Secret"]
        )
        for secret in (SECRET, TOKEN, ":pw@"):
            assert secret not in public_text
        name = "models-stoker"
        full = "existingSecret" in values["database"]
        for template in pods(documents):
            (container,) = template["spec"]["containers"]
            environment = variables(container)
            database = {"name": name, "key": "database-url"}
            configured = {"name": "db", "key": "url"}
            assert environment["STOKER_DATABASE_URL"] == {
                "secretKeyRef": configured if full else database
            }
            if container["name"].startswith("ray-"):
                token = (
                    {"name": "joining", "key": "text"}
                    if full
                    else {"name": name, "key": "ray-token"}
                )
                assert environment["RAY_AUTH_TOKEN"] == {"secretKeyRef": token}
                assert environment["RAY_AUTH_MODE"] == "token"
        made = [document for document in documents if document["kind"] == "Secret"]
        keys = ["database-url", "stoker-secret", *(["ray-token"] if values is RAY_LEAST else [])]
        assert [list(document["stringData"]) for document in made] == ([] if full else [keys])

    def test_nodes_are_told_what_they_have(self, values: dict[str, Any]) -> None:
        documents = rendered(values)
        template = node_pod(documents)
        (container,) = template["spec"]["containers"]
        environment = variables(container)
        ours = {
            name.removeprefix("STOKER_").lower()
            for name in environment
            if name.startswith("STOKER_")
        }
        assert ours <= set(Settings.model_fields)
        limit = {"8Gi": 8 << 10, "3Ti": 3 << 20}[container["resources"]["limits"]["memory"]]
        assert int(environment["STOKER_MEMORY_BUDGET_MIB"]) == int(limit * SHARE)
        (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == "node"]
        assert int(environment["STOKER_NODE_PORT"]) == port
        # The node listens on the address that it reports to servers.
        assert environment["STOKER_NODE_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"] == {"port": "node"}
        full = "nodes" in values
        placed = {name: one for name, one in template["spec"].items() if name in PLACED}
        assert placed == (PLACED if full else {})


class TestNodes:
    def test_there_are_as_many_as_asked_for(self) -> None:
        for values, count in ((NODES_LEAST, 2), (NODES_FULL, 5)):
            documents = rendered(values)
            (nodes,) = [
                document
                for document in documents
                if (document["kind"], document["metadata"]["name"])
                == ("Deployment", "models-stoker-nodes")
            ]
            spec = nodes["spec"]
            assert spec["replicas"] == count
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
            assert spec["template"]["spec"]["containers"][0]["args"] == ["node", "host"]

    def test_no_other_runtime_has_them(self) -> None:
        for values in (LEAST, RAY_LEAST):
            names = [document["metadata"]["name"] for document in rendered(values)]
            assert "models-stoker-nodes" not in names
        assert [
            document for document in rendered(NODES_FULL) if document["kind"] == "RayCluster"
        ] == []


class TestRayCluster:
    @OF_RAY
    def test_is_as_kuberay_has_it(self, values: dict[str, Any]) -> None:
        cluster = of_kind(rendered(values), "RayCluster")
        jsonschema.validate(cluster, SCHEMA)
        assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
        for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
            (container,) = group["template"]["spec"]["containers"]
            assert "command" not in container, "it would take the place of the image's entry point"
            # KubeRay's own probes call a dashboard, which does not run.
            assert {"readinessProbe", "livenessProbe"} <= set(container)

    def test_has_the_ray_of_the_image(self) -> None:
        pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
        spec = of_kind(rendered(RAY_LEAST), "RayCluster")["spec"]
        assert spec["rayVersion"] == pins["ray"]

    @OF_RAY
    def test_stores_of_ray_fit(self, values: dict[str, Any]) -> None:
        for group in groups(rendered(values)):
            (shm,) = [
                volume for volume in group["template"]["spec"]["volumes"] if volume["name"] == "shm"
            ]
            assert shm["emptyDir"]["medium"] == "Memory"
            size = shm["emptyDir"]["sizeLimit"]
            limit = int(size[:-2]) * {"Mi": MIB, "Gi": 1024 * MIB}[size[-2:]]
            assert int(group["rayStartParams"]["object-store-memory"]) < limit

    def test_says_how_many(self) -> None:
        counts = ("replicas", "minReplicas", "maxReplicas")
        for values, expected in (
            (RAY_LEAST, (None, 1, 4)),
            (RAY_FULL, (None, 0, 9)),
            (RAY_FIXED, (5,) * 3),
        ):
            spec = of_kind(rendered(values), "RayCluster")["spec"]
            (nodes,) = spec["workerGroupSpecs"]
            assert tuple(nodes.get(name) for name in counts) == expected
            assert spec["enableInTreeAutoscaling"] is (values is not RAY_FIXED)
            assert ("autoscalerOptions" in spec) is (values is not RAY_FIXED)

    def test_the_autoscaler_belongs_to_it(self) -> None:
        spec = of_kind(rendered(RAY_FULL), "RayCluster")["spec"]
        (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
        options = spec["autoscalerOptions"]
        assert options["securityContext"] == head["securityContext"]
        token = [entry for entry in head["env"] if entry["name"].startswith("RAY_AUTH")]
        assert len(token) == 2
        assert [entry for entry in options["env"] if entry["name"].startswith("RAY_AUTH")] == token
        assert {entry["name"] for entry in options["volumeMounts"]} <= {
            entry["name"] for entry in spec["headGroupSpec"]["template"]["spec"]["volumes"]
        }

    @pytest.mark.parametrize(
        ("values", "limit_mib", "devices"),
        [(RAY_LEAST, 8 << 10, {}), (RAY_FULL, 3 << 20, {"GPU": 1})],
    )
    def test_the_autoscaler_reads_it(
        self, values: dict[str, Any], limit_mib: int, devices: dict[str, int]
    ) -> None:
        """Ray's autoscaler expects the resources that a node reports once it is added."""
        pytest.importorskip("ray")
        from ray.autoscaler._private.kuberay import autoscaling_config

        cluster = of_kind(rendered(values), "RayCluster")
        cluster["metadata"]["namespace"] = "prod"
        read = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)
        types = read["available_node_types"]
        assert types["headgroup"]["resources"] == {"CPU": 0, "GPU": 0, "memory": 0}
        nodes = types["nodes"]
        memory = int(limit_mib * SHARE) * MIB
        assert nodes["resources"] == {"CPU": 0, "memory": memory, **devices}
        options = {"minReplicas": 1, "maxReplicas": 4, "idleTimeoutSeconds": 600}
        options |= values["ray"].get("autoscaling", {})
        assert nodes["min_workers"] == options["minReplicas"]
        assert nodes["max_workers"] == options["maxReplicas"]
        assert read["idle_timeout_minutes"] * 60 == options["idleTimeoutSeconds"]


class TestValues:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"runtime": "kubernetes"},
            {"settings": {"RUNTIME": "ray"}},
            {"nodes": {"resources": {"limits": {"memory": "8G"}}}},
            {"nodes": {"resources": {"limits": {"memory": 8}}}},
            {"nodes": {"replicas": -1}},
            {"ray": {"token": {"value": "short"}}},
            {"ray": {"autoscaling": {"maxReplicas": 0}}},
            {"ray": {"workers": 2}},
        ],
        ids=str,
    )
    def test_refuses_what_is_none(self, wrong: dict[str, Any]) -> None:
        assert "at '" in refused({**RAY_LEAST, **wrong}), "the schema's place of what is wrong"

    def test_says_what_has_to_be_set(self) -> None:
        assert "Set ray.token.value, or ray.token.existingSecret." in refused(
            {**LEAST, "runtime": "ray"}
        )
        scaling = {"minReplicas": 5, "maxReplicas": 4}
        ray = {**RAY_LEAST["ray"], "autoscaling": scaling}
        assert "ray.autoscaling.minReplicas is more than" in refused({**RAY_LEAST, "ray": ray})

    def test_the_page_has_examples_that_work(self) -> None:
        page = (ROOT / "docs" / "kubernetes.md").read_text()
        base = yaml.safe_load(page.split("<<END\n")[1].split("\nEND\n")[0])
        more = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
        cluster = of_kind(rendered({**base, **more}), "RayCluster")
        assert cluster["spec"]["workerGroupSpecs"][0]["maxReplicas"] == 8
