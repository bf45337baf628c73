"""The chart renders with both Helm releases for every value set, and refuses bad values in words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from . import tools
from .chart import CHART, VALUES, Refused, install, name, parse, rendered, template, value_set
from .fake_api import fake_api

pytestmark = pytest.mark.helm

BAD: dict[str, tuple[str, str]] = {
    "tensor parallelism": ("models: [{name: a, tensorParallel: 2}]", r"tensorParallel.*(or equal to 1|want 1)"),
    "tensor parallelism for all": ("worker: {tensorParallel: 8}", r"tensorParallel"),
    "an unknown mode": ("mode: swarm", r"mode.*deployment.*kuberay"),
    "an unknown value": ("router: {replicaz: 3}", r"router.*replicaz"),
    "an unknown value of a model": ("models: [{name: a, gpus: 1}]", r"models.0.*gpus"),
    "a wrong type": ("worker: {kvTokens: many}", r"kvTokens.*integer"),
    "no model": ("models: []", r"models.*(1|minItems)"),
    "a model without a name": ("models: [{model: smollm2-135m}]", r"models.0.*name"),
    "a name that is no DNS label": ("models: [{name: Llama_3}]", r"models.0.name"),
    "a model twice": ("models: [{name: a}, {name: a}]", r"the name a is there twice"),
    "a name of the chart's own": ("models: [{name: workers}]", r"workers is the name of the chart's own"),
    "a name too long": (
        "fullnameOverride: a-very-long-name-for-a-release-indeed-yes\nmodels: [{name: and-a-long-name-of-a-model}]",
        r"52; shorten",
    ),
    "a short key": ("auth: {adminKey: short}", r"adminKey"),
    "a Secret and keys": ("auth: {existingSecret: a, adminKey: 0123456789abcdef}", r"not both"),
    "keys that nobody asks for": (
        "auth: {requireApiKeys: false, apiKeys: [0123456789abcdef-x]}",
        r"requireApiKeys is false",
    ),
    "a setting that has its own value": ("router: {config: {port: 1}}", r"router.config: port is set by the chart"),
    "a model's setting likewise": ("models: [{name: a, config: {kv_tokens: 1}}]", r"models a: config: kv_tokens"),
    "scaling without Prometheus": ("worker: {autoscaling: {enabled: true}}", r"autoscaling.prometheusAddress"),
    "bounds upside down": ("worker: {autoscaling: {minReplicas: 9, maxReplicas: 2}}", r"minReplicas is above"),
    "a claim without its name": ("worker: {modelCache: {type: existingClaim}}", r"modelCache.existingClaim"),
    "KEDA on Ray": ("mode: kuberay\nworker: {autoscaling: {enabled: true, prometheusAddress: x}}", r"mode deployment"),
    "an HPA on Ray": ("mode: kuberay\nrouter: {autoscaling: {enabled: true}}", r"mode deployment"),
    "an ingress for nobody": ("ingress: {enabled: true}", r"ingress: hosts"),
    "a route from nowhere": ("httpRoute: {enabled: true}", r"httpRoute: parentRefs"),
    "a replay of nothing": ("load: {enabled: true, command: replay}", r"load: command replay needs load.trace"),
    "a port beyond ports": ("router: {port: 70000}", r"router.port"),
    "a digest that is none": ("image: {digest: latest}", r"image.digest"),
    "two GPUs for one worker": (
        "models: [{name: a, gpu: {count: 2}}]",
        r"gpu.count is 2, but a worker computes on one",
    ),
    "a GPU for a CPU worker": ("worker: {device: cpu, gpu: {count: 1}}", r"gpu.count is 1 and device is cpu"),
    "a Deployment on Ray": ("mode: kuberay\nworker: {kind: Deployment}", r"kind Deployment is of mode deployment"),
    "a kind that is none": ("worker: {kind: DaemonSet}", r"kind.*StatefulSet.*Deployment"),
    "costs told too often": ("deletionCost: {intervalSeconds: 1}", r"intervalSeconds"),
    "a name of the keeper's": ("models: [{name: deletion-costs}]", r"deletion-costs is the name of the chart's own"),
    "a collector without a scheme": ("tracing: {otlpEndpoint: 'collector:4318'}", r"tracing.otlpEndpoint"),
    "a pool of no tokens": ("worker: {kvTokens: 0}", r"kvTokens"),
}


def test_there_are_at_least_twelve_value_sets() -> None:
    assert len(VALUES) >= 12


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_value_set_passes_strict_lint(helm: str, values: Path) -> None:
    run = subprocess.run(
        [tools.helm(helm), "lint", "--strict", CHART, "--values", values],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stdout


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_value_set_renders_whole_objects_with_their_own_names(helm: str, values: Path) -> None:
    manifests = rendered(helm, values)
    assert manifests
    seen = [name(one) for one in manifests]
    assert len(seen) == len(set(seen)), f"twice: {sorted(seen)}"
    for one in manifests:
        assert one["metadata"]["namespace"] == "llm"
        assert len(one["metadata"]["name"]) <= 63
        assert "<no value>" not in json.dumps(one)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_both_helm_releases_render_the_same_but_for_drawn_keys(values: Path) -> None:
    first, second = (
        {name(one): one for one in rendered(helm, values) if one["kind"] != "Secret"} for helm in tools.HELM_WHEELS
    )
    assert first == second


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_refused_in_words(helm: str, case: str, tmp_path: Path) -> None:
    values, words = BAD[case]
    path = tmp_path / "values.yaml"
    path.write_text(values)
    with pytest.raises(Refused, match=words):
        template(helm, "--values", str(path))


def test_a_model_keeps_its_own_word_even_if_it_says_no_or_nothing(helm: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "worker": {"config": {"prefix_cache": True}, "pdb": {"enabled": True}, "preStopSeconds": 9},
                "models": [
                    {
                        "name": "a",
                        "config": {"prefix_cache": False},
                        "pdb": {"enabled": False},
                        "preStopSeconds": 0,
                        "handOver": {"enabled": False},
                    }
                ],
            }
        )
    )
    manifests = {name(one): one for one in parse(template(helm, "--values", str(path)))}
    container = manifests["StatefulSet prod-trieway-a"]["spec"]["template"]["spec"]["containers"][0]
    assert "--no-prefix-cache" in container["args"]
    assert "lifecycle" not in container
    assert "PodDisruptionBudget prod-trieway-a" not in manifests


def test_large_numbers_stay_whole(helm: str) -> None:
    values = value_set("everything")
    (worker,) = (one for one in rendered(helm, values) if name(one) == "StatefulSet prod-trieway-llama-8b")
    assert "--kv-tokens=1000000" in worker["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_notes_say_how_to_reach_the_fleet_and_show_no_key(helm: str, values: Path) -> None:
    with fake_api() as api:
        notes = install(helm, api, "--values", str(values)).partition("NOTES:")[2]
    assert "helm -n llm test prod" in notes
    assert "port-forward" in notes or "//llm.example.com/v1" in notes
    assert "key-of-alice" not in notes


@pytest.mark.parametrize("version", ["1.31.0", "1.37.1"])
def test_the_oldest_and_the_newest_kubernetes_are_served(helm: str, version: str) -> None:
    assert parse(template(helm, "--kube-version", version))


def test_a_kubernetes_that_is_too_old_is_refused_in_words(helm: str) -> None:
    with pytest.raises(Refused, match=r"kubeVersion.*1\.31"):
        template(helm, "--kube-version", "1.30.9")


def test_the_example_of_the_readme_renders(helm: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text((CHART / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0])
    sets = {
        one["metadata"]["name"] for one in parse(template(helm, "--values", str(path))) if one["kind"] == "StatefulSet"
    }
    assert sets == {"prod-trieway-smollm2-135m", "prod-trieway-llama-8b"}
