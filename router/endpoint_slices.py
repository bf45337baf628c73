"""Kubernetes' EndpointSlices as worker URLs: a table fed by lists and watch events. Pure.

Keeps true: `urls` are exactly the endpoints that are ready and not terminating in any slice of the table, and, if asked
for, those that terminate and still serve; an address that passed from one pod to another is told by `renewed`, so that
nothing of the old pod is believed of the new one. Does not know the API server (kubernetes_discovery.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

ENDPOINTS_MAX = 100_000
"""More endpoints than this in one Service are not taken: the rest is left out and the table says so."""


class TargetRef(msgspec.Struct):
    """The pod behind an address."""

    uid: str = ""


class Conditions(msgspec.Struct):
    """Kubernetes reads an absent `ready` as true."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: Conditions | None = None
    targetRef: TargetRef | None = None

    def serves(self, leaving: bool) -> bool:
        """Takes new requests; `leaving`: also in the time before its pod is told to end."""
        conditions = self.conditions or Conditions()
        if conditions.terminating is True:
            return leaving and conditions.serving is True
        return conditions.ready is not False


class SlicePort(msgspec.Struct):
    name: str | None = None
    port: int | None = None
    appProtocol: str | None = None


class Metadata(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""


class EndpointSlice(msgspec.Struct):
    metadata: Metadata
    addressType: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[SlicePort] | None = None


class ListMetadata(msgspec.Struct):
    """`continue` is a word of Python's, hence the renaming."""

    resourceVersion: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class EndpointSliceList(msgspec.Struct):
    metadata: ListMetadata
    items: list[EndpointSlice] | None = None


class SliceTable:
    """The slices of one Service; `port_name` picks the port of each. `leaving`: see Endpoint.serves."""

    def __init__(self, port_name: str, *, leaving: bool = False) -> None:
        self._port_name = port_name
        self._leaving = leaving
        self._slices: dict[str, EndpointSlice] = {}
        self._pods: dict[str, str] = {}

    def replace(self, slices: Iterable[EndpointSlice]) -> None:
        """A whole list: what it does not name is gone."""
        self._slices = {each.metadata.name: each for each in slices}

    def put(self, each: EndpointSlice) -> None:
        """ADDED or MODIFIED."""
        self._slices[each.metadata.name] = each

    def drop(self, name: str) -> None:
        """DELETED; unknown names do no harm."""
        self._slices.pop(name, None)

    def urls(self) -> frozenset[str]:
        """Where the ready endpoints listen. An address in two slices counts once."""
        return frozenset(self._ready())

    def renewed(self) -> frozenset[str]:
        """URLs that now lead to another pod than at the last call of this method (and did lead to one then)."""
        now = self._ready()
        changed = {url for url, pod in now.items() if pod and self._pods.get(url, pod) != pod}
        self._pods = now
        return frozenset(changed)

    def _ready(self) -> dict[str, str]:
        """URL -> uid of the pod behind it ('' where the slice does not say)."""
        found: dict[str, str] = {}
        for name in sorted(self._slices):
            each = self._slices[name]
            port = self._port(each)
            if port is None:
                continue
            scheme = "https" if port.appProtocol == "https" else "http"
            for endpoint in each.endpoints or ():
                if not endpoint.serves(self._leaving) or not endpoint.addresses or len(found) >= ENDPOINTS_MAX:
                    continue
                host = endpoint.addresses[0]
                host = f"[{host}]" if each.addressType == "IPv6" else host
                found[f"{scheme}://{host}:{port.port}"] = endpoint.targetRef.uid if endpoint.targetRef else ""
        return found

    def _port(self, each: EndpointSlice) -> SlicePort | None:
        """The named port; a single port without a name will do."""
        ports = [port for port in each.ports or () if port.port is not None]
        for port in ports:
            if port.name == self._port_name:
                return port
        return ports[0] if len(ports) == 1 and not ports[0].name else None
