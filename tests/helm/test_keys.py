"""Keys and secret: drawn once, kept over upgrades, taken from the user where given, and nowhere but in the Secret."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from trieway.serving.auth import KeyRing, read_fleet_secret

from .chart import VALUES, install, name, of_kind, parse, rendered, template, value_set
from .fake_api import fake_api

pytestmark = pytest.mark.helm
SECRET = "/api/v1/namespaces/llm/secrets/prod-trieway-keys"


def secret(text: str) -> dict[str, Any]:
    """The Secret's object in what Helm printed."""
    manifests = parse(text.partition("MANIFEST:")[2].partition("NOTES:")[0]) if "MANIFEST:" in text else parse(text)
    (found,) = of_kind(manifests, "Secret")
    return found


def read(found: dict[str, Any]) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def held(found: dict[str, Any]) -> dict[str, Any]:
    """The object as the cluster has it once Helm has installed it."""
    notes = {"meta.helm.sh/release-name": "prod", "meta.helm.sh/release-namespace": "llm"}
    return found | {"metadata": found["metadata"] | {"annotations": notes}}


def test_keys_that_are_not_given_are_drawn_anew_for_each_release(helm: str) -> None:
    first, second = (read(secret(template(helm))) for _ in range(2))
    assert set(first) == {"api-keys", "admin-key", "fleet-secret", "client-key"}
    assert first["api-keys"] == first["client-key"]
    for key in first:
        assert len(first[key]) >= 40
        assert first[key] != second[key]


def test_an_upgrade_finds_the_drawn_keys_again(helm: str) -> None:
    with fake_api() as api:
        installed = secret(install(helm, api))
        api.objects[SECRET] = held(installed)
        assert read(secret(install(helm, api))) == read(installed)


def test_an_upgrade_draws_only_what_is_missing(helm: str) -> None:
    with fake_api() as api:
        installed = secret(install(helm, api))
        without = installed | {"data": {key: value for key, value in installed["data"].items() if key != "admin-key"}}
        api.objects[SECRET] = held(without)
        upgraded = read(secret(install(helm, api)))
    before = read(installed)
    assert upgraded.pop("admin-key") != before.pop("admin-key")
    assert upgraded == before


def test_given_keys_win_over_kept_ones(helm: str) -> None:
    with fake_api() as api:
        api.objects[SECRET] = held(secret(install(helm, api)))
        given = "auth.apiKeys={alice:0123456789abcdef-a,0123456789abcdef-b},auth.adminKey=0123456789abcdef-c"
        keys = read(secret(install(helm, api, "--set", given)))
    assert keys["api-keys"].splitlines() == ["alice:0123456789abcdef-a", "0123456789abcdef-b"]
    assert keys["client-key"] == "0123456789abcdef-a", "tests and load show the key, not its tenant"
    assert keys["admin-key"] == "0123456789abcdef-c"


def test_the_servers_can_read_what_the_chart_draws(helm: str, tmp_path: Path) -> None:
    for key, value in read(secret(template(helm))).items():
        (tmp_path / key).write_text(value)
    ring = KeyRing.from_files(tmp_path / "api-keys", tmp_path / "admin-key")
    client = (tmp_path / "client-key").read_text()
    assert ring.principal({"authorization": f"Bearer {client}"}).tenant is None
    assert read_fleet_secret(tmp_path / "fleet-secret")


def test_with_a_secret_of_the_user_none_is_made_and_its_names_are_used(helm: str) -> None:
    manifests = rendered(helm, value_set("existing-secret"))
    assert not of_kind(manifests, "Secret")
    for one in of_kind(manifests, "Deployment", "StatefulSet"):
        (volume,) = (v for v in one["spec"]["template"]["spec"]["volumes"] if v["name"] == "keys")
        assert volume["secret"]["secretName"] == "my-keys"
        assert {item["key"]: item["path"] for item in volume["secret"]["items"]} == {
            "keys.txt": "api-keys",
            "admin.txt": "admin-key",
            "fleet.txt": "fleet-secret",
        }


def test_no_key_stands_anywhere_but_in_the_secret(helm: str) -> None:
    for values in VALUES:
        manifests = rendered(helm, values)
        for found in of_kind(manifests, "Secret"):
            keys = {part for value in read(found).values() for line in value.splitlines() for part in line.split(":")}
            for one in manifests:
                if one is not found:
                    text = json.dumps(one)
                    assert not [key for key in keys if len(key) >= 16 and key in text], f"{values.stem}: {name(one)}"
