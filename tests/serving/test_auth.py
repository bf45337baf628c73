"""Keys, tenants, the fleet's token, and what may listen where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.auth import (
    KeyRing,
    Principal,
    bearer,
    check_bind,
    is_loopback,
    read_fleet_secret,
    require_fleet,
    shows_fleet_token,
    tenant_name,
)
from trieway.serving.config import ConfigError
from trieway.serving.errors import Forbidden, Unauthorized


def shown(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


def test_without_keys_everybody_may_ask_and_names_a_tenant() -> None:
    ring = KeyRing()
    assert ring.open
    assert ring.admin_open
    assert ring.principal({}) == Principal(admin=True)
    assert ring.principal({"x-tenant-id": "acme"}).tenant == "acme"
    assert ring.principal({"x-tenant-id": "a b"}).tenant is None
    ring.require_admin({})


def test_with_keys_the_key_names_the_tenant() -> None:
    ring = KeyRing({"k1": "acme", "k2": None}, "root")
    assert ring.principal(shown("k1")) == Principal(tenant="acme")
    assert ring.principal(shown("k1", **{"x-tenant-id": "other"})).tenant == "acme"
    assert ring.principal(shown("k2")) == Principal()
    for headers in ({}, shown("k3"), shown("K1"), {"authorization": "Basic k1"}, shown("x" * 10_000), shown("ключ")):
        with pytest.raises(Unauthorized):
            ring.principal(headers)


def test_the_admin_key() -> None:
    ring = KeyRing({"k1": "acme"}, "root")
    assert ring.principal(shown("root")) == Principal(admin=True)
    ring.require_admin(shown("root"))
    with pytest.raises(Forbidden):
        ring.require_admin(shown("k1"))
    with pytest.raises(Unauthorized):
        ring.require_admin({})
    only_admin = KeyRing(admin_key="root")
    assert not only_admin.principal({}).admin
    assert only_admin.principal(shown("root")).admin


def test_no_secret_shows_in_a_repr() -> None:
    assert "hush" not in repr(KeyRing({"hush": "acme"}, "hush"))


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, None),
        ({"authorization": "Bearer x"}, "x"),
        ({"authorization": "bearer   x "}, "x"),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Token x"}, None),
        ({"authorization": ""}, None),
    ],
)
def test_bearer(headers: dict[str, str], token: str | None) -> None:
    assert bearer(headers) == token


def test_the_fleet_s_token() -> None:
    assert shows_fleet_token({"x-trieway-fleet": "t"}, "t")
    assert not shows_fleet_token({"x-trieway-fleet": "u"}, "t")
    assert not shows_fleet_token({}, "t")
    require_fleet(shown("t"), "t")
    for headers in ({}, shown("u"), {"x-trieway-fleet": "t"}):
        with pytest.raises(Unauthorized):
            require_fleet(headers, "t")


@given(value=st.text(max_size=20))
def test_any_header_is_compared_and_none_raises(value: str) -> None:
    ring = KeyRing({"key": None})
    assert not shows_fleet_token({"x-trieway-fleet": value}, "token")
    with pytest.raises(Unauthorized):
        ring.principal({"authorization": "Bearer " + value + "!"})
    name = tenant_name(value)
    assert name is None or name == value


def test_keys_from_files(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nplain-key\nacme:key:with:colons\n  beta key-b\ngamma: key-c\n")
    admin = tmp_path / "admin"
    admin.write_text("root-key\n")
    ring = KeyRing.from_files(keys, admin)
    assert ring.keys == {"plain-key": None, "key:with:colons": "acme", "key-b": "beta", "key-c": "gamma"}
    assert ring.admin_key == "root-key"
    assert KeyRing.from_files(None, None) == KeyRing()


@pytest.mark.parametrize(
    "text",
    ["", "# only\n", "a b c\n", "k\nk\n", "acme:k\nbeta:k\n", "acme:\n", ":k\n", "clé\n", "ten/ant!:k\n"],
)
def test_key_files_that_will_not_do(tmp_path: Path, text: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(text)
    with pytest.raises(ConfigError, match="api_keys_file") as caught:
        KeyRing.from_files(keys, None)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError):
            KeyRing.from_files(path, None)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        KeyRing.from_files(binary, None)
    two = tmp_path / "two"
    two.write_text("one two")
    with pytest.raises(ConfigError, match="admin_key_file"):
        KeyRing.from_files(None, two)


def test_the_fleet_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    assert read_fleet_secret(path) == b"0123456789abcdef"
    assert read_fleet_secret(None) is None
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="16 bytes"):
        read_fleet_secret(path)


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org"]))


def test_what_may_listen_where() -> None:
    keyed = KeyRing({"k": None})
    check_bind("127.0.0.1", KeyRing(), allow_open=False, published_secret=True)
    check_bind("0.0.0.0", keyed, allow_open=False, published_secret=False)
    check_bind("0.0.0.0", KeyRing(), allow_open=True, published_secret=False)
    with pytest.raises(ConfigError, match="api_keys_file"):
        check_bind("0.0.0.0", KeyRing(), allow_open=False, published_secret=False)
    for allow_open in (False, True):
        with pytest.raises(ConfigError, match="fleet_secret_file"):
            check_bind("0.0.0.0", keyed, allow_open=allow_open, published_secret=True)
