"""The table of EndpointSlices on its own: readiness, ports, address families, pods that change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.discovery.api_server import endpoint, endpoint_slice
from trieway.router.endpoint_slices import EndpointSlice, SliceTable


def table(*slices: dict[str, Any], port_name: str = "http") -> SliceTable:
    found = SliceTable(port_name)
    found.replace(read(each) for each in slices)
    return found


def read(each: dict[str, Any]) -> EndpointSlice:
    return msgspec.convert(each, EndpointSlice)


@pytest.mark.parametrize(
    ("ready", "terminating", "serves"),
    [(True, None, True), (True, False, True), (None, None, True), (False, None, False), (True, True, False)],
)
def test_only_ready_endpoints_serve(ready: bool | None, terminating: bool | None, serves: bool) -> None:
    found = table(endpoint_slice("a", [endpoint("10.0.0.1", ready=ready, terminating=terminating)]))
    assert found.urls() == ({"http://10.0.0.1:8100"} if serves else set())


@pytest.mark.parametrize(
    ("ready", "serving", "terminating", "serves"),
    [
        (True, True, None, True), (False, False, None, False), (False, True, True, True), (False, False, True, False),
        (True, True, True, True), (False, True, False, False),
    ],
)  # fmt: skip
def test_those_that_leave_serve_while_they_are_ready_if_asked_for(
    ready: bool, serving: bool, terminating: bool | None, serves: bool
) -> None:
    found = SliceTable("http", leaving=True)
    one = endpoint("10.0.0.1", ready=ready, serving=serving, terminating=terminating)
    found.replace([read(endpoint_slice("a", [one]))])
    assert found.urls() == ({"http://10.0.0.1:8100"} if serves else set())


def test_no_conditions_at_all_mean_ready() -> None:
    assert table(endpoint_slice("a", [{"addresses": ["10.0.0.1"]}])).urls() == {"http://10.0.0.1:8100"}


def test_slices_add_up_and_an_address_in_two_counts_once() -> None:
    found = table(
        endpoint_slice("a", [endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False)]),
        endpoint_slice("b", [endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3")]),
    )
    assert found.urls() == {f"http://10.0.0.{n}:8100" for n in (1, 2, 3)}


def test_the_port_is_taken_by_name() -> None:
    assert table(endpoint_slice("a", [endpoint("10.0.0.1")]), port_name="metrics").urls() == {"http://10.0.0.1:9"}
    assert table(endpoint_slice("a", [endpoint("10.0.0.1")]), port_name="other").urls() == set()


@pytest.mark.parametrize("name", [None, ""])
def test_a_single_nameless_port_will_do(name: str | None) -> None:
    nameless = endpoint_slice("a", [endpoint("10.0.0.1")], ports=[{"name": name, "port": 80}])
    assert table(nameless).urls() == {"http://10.0.0.1:80"}


def test_addresses_of_ipv6_and_https_are_written_as_urls() -> None:
    six = endpoint_slice("a", [endpoint("fd00::1")], kind="IPv6")
    tls = endpoint_slice("b", [endpoint("10.0.0.1")], ports=[{"name": "http", "port": 443, "appProtocol": "https"}])
    assert table(six, tls).urls() == {"http://[fd00::1]:8100", "https://10.0.0.1:443"}


def test_slices_without_endpoints_are_empty() -> None:
    assert table(endpoint_slice("a", None)).urls() == set()


def test_a_change_replaces_its_slice_and_a_deletion_forgets_it() -> None:
    found = table(endpoint_slice("a", [endpoint("10.0.0.1")]))
    found.put(read(endpoint_slice("a", [endpoint("10.0.0.2")])))
    found.drop("never-seen")
    assert found.urls() == {"http://10.0.0.2:8100"}
    found.drop("a")
    assert found.urls() == set()


def test_an_address_that_goes_to_another_pod_is_renewed_once() -> None:
    found = table(endpoint_slice("a", [endpoint("10.0.0.1", "old"), endpoint("10.0.0.2", "same")]))
    assert found.renewed() == set()
    found.put(read(endpoint_slice("a", [endpoint("10.0.0.1", "new"), endpoint("10.0.0.2", "same")])))
    assert found.renewed() == {"http://10.0.0.1:8100"}
    assert found.renewed() == set()


def test_the_same_pod_back_after_being_unready_is_not_renewed() -> None:
    found = table(endpoint_slice("a", [endpoint("10.0.0.1", "pod")]))
    found.renewed()
    found.put(read(endpoint_slice("a", [endpoint("10.0.0.1", "pod", ready=False)])))
    assert found.renewed() == set()
    found.put(read(endpoint_slice("a", [endpoint("10.0.0.1", "pod")])))
    assert found.renewed() == set()
