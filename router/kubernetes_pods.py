"""What the keeper of deletion costs asks of a Kubernetes API server: the workers' pods listed, a pod's cost written.

Keeps true: a Role with `list` on `pods` and `patch` on `pods/status` is enough. The annotation is written through the
status subresource, which takes metadata of pods but nothing of their spec: who holds this right can run nothing. A
write names the pod's uid, so that it never meets another pod of the same name. Does not know what a cost means.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from trieway.router.kubernetes_http import ApiError, Connection, Server, refusal

COST = "controller.kubernetes.io/pod-deletion-cost"
MODEL = "trieway.dev/model"
PORT_NAME = "http"
PAGE_ITEMS = 500
PAGES_MAX = 40
"""20,000 pods: more workers than a router takes."""
_LOST = frozenset({404, 409, 410, 422})
"""The pod is gone, or another one has its name (422: another uid), or somebody wrote at the same moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A worker's pod that is ready and stays. `cost` None: it has none that can be read."""

    name: str
    uid: str
    model: str
    url: str
    cost: int | None


class _Owner(msgspec.Struct):
    kind: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[_Owner] | None = None
    deletionTimestamp: str | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    containerPort: int = 0


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container] | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _State(msgspec.Struct):
    podIP: str | None = None
    conditions: list[_Condition] | None = None


class _Item(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _State = msgspec.field(default_factory=_State)


class _ListMetadata(msgspec.Struct):
    next_page: str = msgspec.field(default="", name="continue")


class _Items(msgspec.Struct):
    items: list[_Item] | None = None
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


class KubernetesPods:
    """Open it inside the event loop; `close` ends its connections. `selector`: labels of the workers' pods."""

    def __init__(self, server: Server, namespace: str, selector: str) -> None:
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        self._selector = selector
        self._connection = Connection(server)

    async def list(self) -> list[Pod]:
        """The pods of Deployments that take traffic. Raises ApiError."""
        found: list[Pod] = []
        page = ""
        for _ in range(PAGES_MAX):
            query = f"?labelSelector={quote(self._selector, safe='')}&limit={PAGE_ITEMS}"
            query += f"&continue={quote(page, safe='')}" if page else ""
            status, body = await self._connection.whole("GET", self._path + query, what="listing pods")
            if status != 200:
                raise refusal(status, body, needs="list on pods")
            try:
                items = msgspec.json.decode(body, type=_Items)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ApiError(f"the list of pods cannot be read: {error}") from None
            found += [pod for item in items.items or () if (pod := _pod(item)) is not None]
            page = items.metadata.next_page
            if not page:
                return found
        raise ApiError(f"the list of pods has more than {PAGES_MAX} pages")

    async def set_cost(self, pod: Pod, cost: int) -> bool:
        """Whether the pod has the cost now; False if it is gone, or changed meanwhile. Raises ApiError."""
        patch = {"metadata": {"uid": pod.uid, "annotations": {COST: str(cost)}}}
        status, body = await self._connection.whole(
            "PATCH",
            f"{self._path}/{quote(pod.name, safe='')}/status?fieldManager=trieway",
            what=f"writing the cost of pod {pod.name}",
            data=msgspec.json.encode(patch),
            kind="application/merge-patch+json",
        )
        if status in _LOST:
            return False
        if status not in (200, 201):
            raise refusal(status, body, needs="patch on pods/status")
        return True

    async def close(self) -> None:
        """Ends its connections."""
        await self._connection.close()


def _pod(item: _Item) -> Pod | None:
    """None for what no scale-in of a Deployment would choose by cost: not ready, on its way out, of a StatefulSet."""
    metadata, state = item.metadata, item.status
    ready = any(one.type == "Ready" and one.status == "True" for one in state.conditions or ())
    owned = any(one.controller and one.kind == "ReplicaSet" for one in metadata.ownerReferences or ())
    ports = [
        port.containerPort for one in item.spec.containers or () for port in one.ports or () if port.name == PORT_NAME
    ]
    if not (ready and owned and ports and state.podIP) or metadata.deletionTimestamp:
        return None
    host = f"[{state.podIP}]" if ":" in state.podIP else state.podIP
    return Pod(
        name=metadata.name,
        uid=metadata.uid,
        model=(metadata.labels or {}).get(MODEL, ""),
        url=f"http://{host}:{ports[0]}",
        cost=_number((metadata.annotations or {}).get(COST)),
    )


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
