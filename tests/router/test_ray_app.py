"""The application that Ray Serve is given, as far as it can be judged without a cluster. Needs Ray installed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'trieway[ray]'", exc_type=ImportError)

from trieway.fleet.ray_fleet import arguments
from trieway.router import ray_app, ray_policy
from trieway.serving.config import ConfigError, RayConfig, RouterConfig, WorkerConfig
from trieway.serving.config_load import load

pytestmark = pytest.mark.filterwarnings("ignore")
NODES = ["10.0.0.1", "10.0.0.2"]


@pytest.fixture(autouse=True)
def _nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_app, "serving_nodes", lambda: NODES)


def deployments(args: dict[str, Any]) -> dict[str, Any]:
    """Name -> deployment."""
    front = ray_app.build(args)._bound_deployment
    found = {front.name: front}
    for bound in front.init_args[-1]:
        found[bound._bound_deployment.name] = bound._bound_deployment
    return found


def test_a_router_on_every_node_and_a_deployment_for_each_model() -> None:
    found = deployments({"models": [{"name": "a", "replicas": 3, "num_gpus": 1}, {"name": "org/b c"}]})
    assert set(found) == {"worker-a", "worker-org-b-c", "router-10.0.0.1", "router-10.0.0.2"}
    assert found["worker-a"].num_replicas == 3
    assert found["worker-a"].ray_actor_options["num_gpus"] == 1
    assert found["router-10.0.0.2"].ray_actor_options["resources"] == {"node:10.0.0.2": 0.001}


def test_where_the_platform_offers_a_place_for_each_router_they_are_one_deployment() -> None:
    found = deployments({"models": [{"name": "a"}], "router_resources": {"trieway_router": 1}, "router_replicas": 4})
    assert found["router"].num_replicas == 4
    assert found["router"].ray_actor_options["resources"] == {"trieway_router": 1}


def test_the_same_settings_have_the_same_version_and_others_another() -> None:
    def versions(**changes: Any) -> dict[str, str]:
        model = {"name": "a", "replicas": 2, "worker": {"kv_tokens": 4096}}
        args = {"router": {"port": 8000}, "models": [model], **changes}
        return {name: one.version for name, one in deployments(args).items()}

    same = versions()
    assert versions() == same
    scaled = versions(models=[{"name": "a", "replicas": 9, "worker": {"kv_tokens": 4096}}])
    assert scaled == same, "scaling restarts nothing"
    assert versions(router={"port": 8001})["worker-a"] == same["worker-a"]
    assert versions(router={"port": 8001})["router-10.0.0.1"] != same["router-10.0.0.1"]
    rolled = versions(roll="b")
    assert all(rolled[name] != same[name] for name in same)


def test_scaling_by_load_has_our_policy() -> None:
    found = deployments({"models": [{"name": "a", "min_replicas": 2, "max_replicas": 5, "autoscaling": {"calm_s": 9}}]})
    scaling = found["worker-a"]._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 5)
    assert scaling.policy.policy_function == "trieway.router.ray_policy:Policy"
    assert scaling.policy.policy_kwargs == {"calm_s": 9}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"modles": []}, "modles"),
        ({"models": [{"name": "a", "gpus": 1}]}, "gpus"),
        ({"models": [{"replicas": 1}]}, "name"),
        ({"models": [{"name": "a", "worker": {"kv_token": 1}}]}, "kv_token"),
        ({"models": [{"name": "a", "worker": {"kv_tokens": "many"}}]}, "kv_tokens"),
        ({"router": {"port": 99999}, "models": [{"name": "a"}]}, "port"),
        ({"fleet": "a/b"}, "fleet"),
    ],
)
def test_what_nobody_knows_is_refused_by_name(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ray_app.build(args)


def test_the_command_line_gives_what_the_application_takes() -> None:
    flags = {
        "models": ["a", "b"], "workers": "3", "worker_gpus": "1", "port": "9000", "kv_tokens": "4096",
        "fleet_secret_file": "/etc/secret",
    }  # fmt: skip
    config = load(RayConfig, flags=flags, environ={})
    args = arguments(config, "x")
    found = deployments(args)
    assert set(found) == {"worker-a", "worker-b", "router-10.0.0.1", "router-10.0.0.2"}
    assert args["router"]["port"] == 9000
    assert args["router"]["fleet_secret_file"] == "/etc/secret"
    for model, name in zip(args["models"], "ab", strict=True):
        assert model["worker"] == {"model": name, "kv_tokens": 4096, "fleet_secret_file": "/etc/secret"}
        assert (model["num_gpus"], model["replicas"]) == (1.0, 3)


def test_placement_flags_reach_the_actors() -> None:
    flags = {"worker_labels": ("disk=fast", "zone=in(a,b)"), "worker_resources": ("licence=0.5",), "worker_gpus": "2"}
    found = deployments(arguments(load(RayConfig, flags=flags, environ={})))
    actor = found["worker-smollm2-135m"].ray_actor_options
    assert actor["label_selector"] == {"disk": "fast", "zone": "in(a,b)"}
    assert actor["resources"] == {"licence": 0.5}
    assert actor["num_gpus"] == 2
    assert "label_selector" not in found["router-10.0.0.1"].ray_actor_options


def test_scaling_flags_reach_the_policy() -> None:
    flags = {"workers_max": "6", "scale_ttft_ms": "300", "scale_calm_s": "9", "scale_interval_s": "2"}
    found = deployments(arguments(load(RayConfig, flags=flags, environ={})))
    scaling = found["worker-smollm2-135m"]._deployment_config.autoscaling_config
    assert (scaling.metrics_interval_s, scaling.look_back_period_s) == (2, 6)
    policy = ray_policy.Policy(**scaling.policy.policy_kwargs)
    aim = policy._aim | {"least": 1, "most": 6}
    assert ray_policy.Aim(**aim) == ray_policy.Aim(
        least=1, most=6, ttft_target_ms=300, calm_s=9, up_pause_s=6, queue_target_ms=250, start_s=300
    )


def test_scaling_flags_reach_the_application() -> None:
    args = arguments(load(RayConfig, flags={"workers_min": "2", "workers_max": "6"}, environ={}))
    assert (args["models"][0]["min_replicas"], args["models"][0]["max_replicas"]) == (2, 6)
    with pytest.raises(ConfigError, match="workers_min"):
        load(RayConfig, flags={"workers_min": "7", "workers_max": "6"}, environ={})


def test_only_what_differs_from_the_defaults_travels() -> None:
    assert ray_app.worker_settings(WorkerConfig()) == {}
    assert ray_app.worker_settings(RouterConfig(requests_max=7)) == {"requests_max": 7}
