"""Every command and Serve configuration that the chart renders is one that the program takes."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from trieway.cli import build_parser
from trieway.serving.config import RouterConfig, WorkerConfig
from trieway.serving.config_load import load

from . import tools
from .chart import HELMS, VALUES, containers, of_kind, pods, rendered, value_set

pytestmark = [pytest.mark.helm, pytest.mark.usefixtures("helms")]
each_value_set = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
KINDS: dict[str, type[Any]] = {"router": RouterConfig, "worker": WorkerConfig}


def parsed(arguments: list[str]) -> argparse.Namespace:
    try:
        return build_parser().parse_args(arguments)
    except SystemExit:
        pytest.fail(f"trieway refuses {arguments}")


@each_value_set
def test_servers_take_every_flag_that_is_rendered(values: Path) -> None:
    for whose, pod in pods(rendered(HELMS[-1], values)):
        for container in containers(pod, init=False):
            if container.get("command") == ["trieway"] and container["args"][0] in KINDS:
                kind = KINDS[container["args"][0]]
                config = load(kind, flags=vars(parsed(container["args"])), environ={})
                assert config.port == container["ports"][0]["containerPort"], whose


@each_value_set
def test_environment_of_the_chart_is_none_that_the_program_refuses(values: Path) -> None:
    for _, pod in pods(rendered(HELMS[-1], values)):
        for container in containers(pod, init=False):
            environ = {one["name"]: str(one.get("value", "")) for one in container.get("env", [])}
            load(RouterConfig, flags={}, environ=environ)


def test_values_reach_their_settings() -> None:
    manifests = rendered(HELMS[-1], value_set("everything"))
    by_name = {one["metadata"]["name"]: one for one in of_kind(manifests, "Deployment", "StatefulSet")}

    def config(name: str, kind: type[Any]) -> Any:
        container = containers(by_name[name]["spec"]["template"], init=False)[0]
        return load(kind, flags=vars(parsed(container["args"])), environ={})

    router = config("prod-trieway-router", RouterConfig)
    assert (router.policy, router.requests_max, router.retries_max, router.idle_timeout_s, router.seed) == (
        "least_loaded", 8192, 3, 60.0, None,
    )  # fmt: skip
    worker = config("prod-trieway-llama-8b", WorkerConfig)
    assert (worker.kv_tokens, worker.page_size, worker.device, worker.policy, worker.prefix_cache) == (
        1_000_000, 16, "cuda", "fcfs", False,
    )  # fmt: skip
    assert worker.served_model_name == "meta-llama/Llama-3.1-8B-Instruct"
    assert worker.model == "/var/cache/trieway/hub/llama-8b", "where the init container puts it"


def test_a_fetched_model_is_loaded_from_where_it_was_put() -> None:
    for values in VALUES:
        for whose, pod in pods(rendered(HELMS[-1], values)):
            for init in pod["spec"].get("initContainers", []):
                if init["name"] == "fetch-model":
                    (place,) = (arg.partition("=")[2] for arg in init["args"] if arg.startswith("--local-dir="))
                    mounts = {mount["name"]: mount["mountPath"] for mount in init["volumeMounts"]}
                    assert place.startswith(mounts["models"]), whose


@each_value_set
def test_the_load_job_is_a_command_that_the_program_takes(values: Path) -> None:
    for job in of_kind(rendered(HELMS[-1], values), "Job"):
        (container,) = containers(job["spec"]["template"], init=False)
        asked = parsed(container["args"])
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        folder = str(asked.report).rpartition("/")[0]
        assert folder.rpartition("/")[0] in mounts, "a folder of its own on the claim"
        assert str(asked.json) == f"{folder}/report.json"
        assert job["metadata"]["name"].endswith(folder.rpartition("/")[2])
        (ready,) = job["spec"]["template"]["spec"]["initContainers"]
        assert folder in ready["args"], "the init container makes it"
        assert str(asked.key_file).rpartition("/")[0] in mounts


def serve_configs() -> dict[str, dict[str, Any]]:
    return {
        values.stem: yaml.safe_load(ray["spec"]["serveConfigV2"])
        for values in VALUES
        for ray in of_kind(rendered(HELMS[-1], values), "RayService")
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_serve_configurations_are_valid_by_rays_own_schema_and_build_their_application() -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed: serveConfigV2 was not checked (make test-ray does)")
    from ray.serve.schema import ServeDeploySchema

    configs = serve_configs()
    assert len(configs) >= 3
    for where, config in configs.items():
        deploy = ServeDeploySchema.model_validate(config)
        for application in deploy.applications:
            module, _, attribute = application.import_path.partition(":")
            build = getattr(importlib.import_module(module), attribute)
            built = build(application.args)
            assert type(built).__name__ == "Application", where


def test_ray_nodes_offer_what_the_application_asks_for() -> None:
    for values in VALUES:
        for ray in of_kind(rendered(HELMS[-1], values), "RayService"):
            (application,) = yaml.safe_load(ray["spec"]["serveConfigV2"])["applications"]
            groups = {group["groupName"]: group for group in ray["spec"]["rayClusterConfig"]["workerGroupSpecs"]}
            offered = {
                name: yaml.safe_load(group["rayStartParams"]["resources"].strip("'")) for name, group in groups.items()
            }
            assert offered.pop("router") == application["args"]["router_resources"]
            assert groups["router"]["replicas"] == application["args"]["router_replicas"]
            for model in application["args"]["models"]:
                assert offered[model["name"]] == model["resources"]
                assert float(groups[model["name"]]["rayStartParams"].get("num-gpus", 0)) == model["num_gpus"]
            head = ray["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]
            assert head["num-cpus"] == "0", "the head runs no replica"


def test_the_charts_ray_version_is_the_pinned_one() -> None:
    pins = dict(line.split("==") for line in (tools.ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    values = yaml.safe_load((tools.ROOT / "helm" / "trieway" / "values.yaml").read_text())
    assert values["kuberay"]["rayVersion"] == pins["ray"]
