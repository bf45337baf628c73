"""Every manifest is valid: built-in kinds against Kubernetes 1.31 to 1.37, others against what is at hand.

RayService is checked against KubeRay's own definition where a copy lies beside the checkout; ScaledObject,
ServiceMonitor, PrometheusRule and HTTPRoute against small schemas of ours. What that leaves out is printed.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import tools
from .chart import HELMS, VALUES, Manifest, name, of_kind, pods, rendered
from .conftest import UNCHECKED

pytestmark = [
    pytest.mark.helm,
    pytest.mark.usefixtures("validators", "helms"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

KUBERNETES = tuple(f"1.{minor}" for minor in range(31, 38))
OWN = {path.stem: path for path in (Path(__file__).parent / "schemas").glob("*.json")}
CRDS = tools.ROOT.parent / "shared" / "crds"


def distinct(kinds: set[str], *, builtin: bool) -> dict[str, Manifest]:
    """Each different manifest of all value sets and Helm releases once, by a name for messages."""
    found: dict[str, Manifest] = {}
    seen: set[str] = set()
    for helm in HELMS:
        for values in VALUES:
            for one in rendered(helm, values):
                text = json.dumps(one, sort_keys=True)
                if (one["kind"] in kinds) != builtin and text not in seen:
                    seen.add(text)
                    found[f"{values.stem} (Helm {helm}): {name(one)}"] = one
    return found


@pytest.mark.parametrize("version", KUBERNETES)
def test_built_in_kinds_are_valid_in_every_kubernetes_release(version: str) -> None:
    import kubernetes_validate

    wrong = []
    manifests = distinct({*OWN, "RayService"}, builtin=True)
    assert len(manifests) > 100
    for where, one in manifests.items():
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{where}: {'.'.join(map(str, error.path))}: {error.message}")
    assert not wrong


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_pods_of_a_ray_service_are_valid_pods(version: str, helm: str) -> None:
    import kubernetes_validate

    for values in VALUES:
        for ray in of_kind(rendered(helm, values), "RayService"):
            for whose, template in pods((ray,)):
                pod = {"apiVersion": "v1", "kind": "Pod", **template}
                try:
                    kubernetes_validate.validate(pod, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    pytest.fail(f"{values.stem}: {whose}: {'.'.join(map(str, error.path))}: {error.message}")


@pytest.mark.parametrize("kind", sorted(OWN))
def test_kinds_of_operators_are_valid_by_our_own_small_schemas(kind: str) -> None:
    import jsonschema

    schema = json.loads(OWN[kind].read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    UNCHECKED.add(f"{kind}: against a small schema of our own ({schema['title']}), not the operator's")
    found = distinct({kind}, builtin=False)
    assert found, f"no value set renders a {kind}"
    for where, one in found.items():
        wrong = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(one)]
        assert not wrong, f"{where}: {wrong}"


@pytest.mark.parametrize("kind", sorted(OWN))
def test_our_own_schemas_refuse_a_misspelt_field(kind: str) -> None:
    import jsonschema

    schema = json.loads(OWN[kind].read_text())
    one = next(iter(distinct({kind}, builtin=False).values()))
    broken = one | {"spec": one["spec"] | {"speling": 1}}
    assert list(jsonschema.Draft7Validator(schema).iter_errors(broken))


@cache
def definition(kind: str) -> dict[str, Any]:
    """KubeRay's schema of a kind, closed: a field that the API server would silently drop is an error here."""
    path = CRDS / f"ray.io_{kind.lower()}s.yaml.gz"
    if not path.exists():
        UNCHECKED.add(f"{kind}: not against KubeRay's definition ({path.name} is not beside the checkout)")
        pytest.skip(f"{path} is absent: KubeRay's definitions are not part of this project")
    whole = yaml.safe_load(gzip.decompress(path.read_bytes()))
    (version,) = (one for one in whole["spec"]["versions"] if one["name"] == "v1")
    UNCHECKED.add(f"{kind}: KubeRay's CEL rules and its webhook were not run")
    return closed(version["schema"]["openAPIV3Schema"])


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
        if not open_ended:
            whole["additionalProperties"] = False
    return whole


def test_a_ray_service_is_valid_by_kuberays_definition(helm: str) -> None:
    import jsonschema

    schema = definition("RayService")
    # Metadata is the API server's own, not the definition's.
    schema = schema | {"properties": schema["properties"] | {"metadata": {"type": "object"}}}
    found = 0
    for values in VALUES:
        for one in of_kind(rendered(helm, values), "RayService"):
            found += 1
            wrong = [
                f"{'.'.join(map(str, error.path))}: {error.message[:300]}"
                for error in jsonschema.Draft4Validator(schema).iter_errors(one)
            ]
            assert not wrong, f"{values.stem}: {wrong}"
    assert found >= 3


def test_the_closed_definition_refuses_a_misspelt_field() -> None:
    import jsonschema

    schema = definition("RayService")
    wrong = {"apiVersion": "ray.io/v1", "kind": "RayService", "spec": {"rayClusterConfig": {"headGroupSpek": {}}}}
    messages = [error.message for error in jsonschema.Draft4Validator(schema).iter_errors(wrong)]
    assert any("headGroupSpek" in message for message in messages)
