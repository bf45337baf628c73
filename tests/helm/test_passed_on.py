"""What a user says of pods reaches them, in both modes and for every model, as it was said."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from .chart import CHART, HELMS, VALUES, Manifest, containers, of_kind, pods, rendered, workloads

pytestmark = [pytest.mark.helm, pytest.mark.usefixtures("helms")]
each_value_set = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
Part = dict[str, Any]


def over(below: Any, above: Any) -> Any:
    """Values over values, as Helm merges them: maps by key, everything else whole."""
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: over(below.get(key), value) for key, value in above.items()}
    return deepcopy(above)


def effective(values: Path) -> Part:
    """The chart's values under a value set."""
    found: Part = over(yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(values.read_text()) or {})
    return found


def parts(values: Path) -> Iterator[tuple[str, Part, Manifest]]:
    """(whose, what the user says of it, pod) of routers and of each model's workers."""
    said = effective(values)
    models = {model["name"]: over(said["worker"], model) for model in said["models"]}
    for whose, pod in pods(rendered(HELMS[-1], values)):
        labels = pod["metadata"]["labels"]
        component = labels["app.kubernetes.io/component"]
        if component in {"router", "worker"}:
            yield whose, said["router"] if component == "router" else models[labels["trieway.dev/model"]], pod


@each_value_set
def test_where_a_pod_may_run(values: Path) -> None:
    for whose, part, pod in parts(values):
        for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName"):
            assert pod["spec"].get(name) == (part[name] or None), f"{whose}: {name}"
        spread = pod["spec"]["topologySpreadConstraints"]
        assert all(one["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items() for one in spread)
        if part["topologySpreadConstraints"]:
            bare = [{key: value for key, value in one.items() if key != "labelSelector"} for one in spread]
            assert bare == part["topologySpreadConstraints"], whose


@each_value_set
def test_labels_annotations_environment_volumes_and_containers(values: Path) -> None:
    said = effective(values)
    for whose, part, pod in parts(values):
        metadata, main = pod["metadata"], containers(pod, init=False)[0]
        assert metadata["labels"].items() >= (said["commonLabels"] | part["podLabels"]).items(), whose
        assert metadata["annotations"].items() >= (said["commonAnnotations"] | part["podAnnotations"]).items(), whose
        for one in part["extraEnv"]:
            assert one in main["env"], whose
        assert main.get("envFrom", []) == part["extraEnvFrom"], whose
        for one in part["extraVolumes"]:
            assert one in pod["spec"]["volumes"], whose
        for one in part["extraVolumeMounts"]:
            assert one in main["volumeMounts"], whose
        for one in part["sidecars"]:
            assert one in pod["spec"]["containers"], whose
        for one in part["initContainers"]:
            assert one in pod["spec"]["initContainers"], whose


@each_value_set
def test_memory_gpus_and_images(values: Path) -> None:
    said = effective(values)
    for whose, part, pod in parts(values):
        main = containers(pod, init=False)[0]
        image = said["image"] | part["image"]
        assert main["image"].startswith(f"{image['repository']}:") or main["image"].startswith(
            f"{image['repository']}@"
        )
        assert pod["spec"].get("imagePullSecrets", []) == image["pullSecrets"]
        if "gpu" not in part:
            assert main["resources"] == part["resources"], whose
            continue
        shm = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": part["shmSize"]}, whose
        gpus = {part["gpu"]["resourceName"]: part["gpu"]["count"]} if part["gpu"]["count"] else {}
        assert main["resources"] == over(part["resources"], {"limits": gpus} if gpus else {}), whose
        if gpus and not part["image"] and not image["tag"] and not image["digest"]:
            assert main["image"].endswith("-cuda"), whose


@each_value_set
def test_extra_flags_stand_last_and_so_win(values: Path) -> None:
    for whose, part, pod in parts(values):
        args = containers(pod, init=False)[0].get("args", [])
        if args and part["extraArgs"]:
            assert args[-len(part["extraArgs"]) :] == part["extraArgs"], whose


@each_value_set
def test_counts_budgets_and_bounds(values: Path) -> None:
    said = effective(values)
    models = {model["name"]: over(said["worker"], model) for model in said["models"]}
    manifests = rendered(HELMS[-1], values)
    for one in workloads(manifests, "router", "worker"):
        part = models.get(one["metadata"]["labels"].get("trieway.dev/model", ""), said["router"])
        assert one["spec"].get("replicas", part["replicas"]) == part["replicas"]
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert len(budgets) == sum(part["pdb"]["enabled"] for part in (said["router"], *models.values()))
    for budget in budgets:
        part = models.get(budget["metadata"]["labels"].get("trieway.dev/model", ""), said["router"])
        assert budget["spec"]["maxUnavailable"] == part["pdb"]["maxUnavailable"]
    for scaled in of_kind(manifests, "HorizontalPodAutoscaler"):
        scale = said["router"]["autoscaling"]
        assert (scaled["spec"]["minReplicas"], scaled["spec"]["maxReplicas"]) == (
            scale["minReplicas"],
            scale["maxReplicas"],
        )
    for scaled in of_kind(manifests, "ScaledObject"):
        scale = models[scaled["metadata"]["labels"]["trieway.dev/model"]]["autoscaling"]
        bounds = scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]
        assert bounds == (scale["minReplicas"], scale["maxReplicas"])
