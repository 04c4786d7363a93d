"""The command and variables that KubeRay creates from a RayCluster for our containers. Source: its
documentation and release 1.4.
"""

import re
from collections.abc import Mapping
from typing import Any

SWITCHED = frozenset({"true", "false"})
"""Values of options that are switches. `true` sets the option, `false` omits it."""
NO_SWITCHES = frozenset({"include-dashboard", "log-color"})
GROUP: dict[str, Any] = {
    "type": "object",
    "required": ["rayStartParams", "template"],
    "additionalProperties": False,
    "properties": {
        "rayStartParams": {"type": "object", "additionalProperties": {"type": "string"}},
        "template": {
            "type": "object",
            "required": ["metadata", "spec"],
            "additionalProperties": False,
            "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}},
        },
    },
}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["headGroupSpec", "workerGroupSpecs", "rayVersion"],
            "additionalProperties": False,
            "properties": {
                "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                "enableInTreeAutoscaling": {"type": "boolean"},
                "autoscalerOptions": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "version": {"enum": ["v1", "v2"]},
                        "idleTimeoutSeconds": COUNT,
                        "securityContext": {"type": "object"},
                        "env": {"type": "array"},
                        "volumeMounts": {"type": "array"},
                    },
                },
                "headGroupSpec": {
                    **GROUP,
                    "properties": {
                        **GROUP["properties"],
                        "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                    },
                },
                "workerGroupSpecs": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        **GROUP,
                        "required": [
                            *GROUP["required"],
                            "groupName",
                            "minReplicas",
                            "maxReplicas",
                        ],
                        "properties": {
                            **GROUP["properties"],
                            "groupName": {
                                "type": "string",
                                "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$",
                            },
                            "replicas": COUNT,
                            "minReplicas": COUNT,
                            "maxReplicas": COUNT,
                        },
                    },
                },
            },
        },
    },
}
"""Schema of ray.io/v1, limited to the fields that we use."""


def start_command(group: Mapping[str, Any], *, head: str | None, scaled: bool) -> str:
    """Returns the value of KUBERAY_GEN_RAY_START_CMD.

    Args:
        head: `host:port` of the head. None for the head itself.
        scaled: True if the autoscaler runs in the head's pod. Applies to the head.
    """
    parameters: dict[str, str] = {
        "block": "true",
        "dashboard-agent-listen-port": "52365",
        "metrics-export-port": "8080",
        **({"address": head} if head else {"dashboard-host": "0.0.0.0"}),
        **({"no-monitor": "true"} if scaled and not head else {}),
        **group["rayStartParams"],
    }
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    parameters.setdefault("memory", str(limits["memory"]))
    for name, count in limits.items():
        if name.endswith("gpu"):
            parameters.setdefault("num-gpus", str(count))
    words = ["ray start ", *([] if head else ["--head "])]
    for name, value in sorted(parameters.items()):
        if value.lower() not in SWITCHED or name in NO_SWITCHES:
            words.append(f" --{name}={value} ")
        elif value.lower() == "true":
            words.append(f" --{name} ")
    return "".join(words)


def expanded(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Expands variables in arguments as Kubernetes does for a container."""
    return [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in words]
