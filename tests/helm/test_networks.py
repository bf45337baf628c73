"""NetworkPolicies of the chart: what must speak with each other may, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chart import (
    HELMS,
    VALUES,
    Manifest,
    component_of,
    containers,
    of_kind,
    parse,
    pods,
    rendered,
    selects,
    template,
    workloads,
)

pytestmark = [pytest.mark.helm, pytest.mark.usefixtures("helms")]
each_value_set = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def allows(policy: Manifest, source: dict[str, str], port: int) -> bool:
    """Whether a NetworkPolicy lets pods with these labels in on a port."""
    for rule in policy["spec"]["ingress"]:
        peers = rule.get("from")
        open_to = peers is None or any(
            "namespaceSelector" not in peer and selects(peer["podSelector"].get("matchLabels", {}), source)
            for peer in peers
            if "podSelector" in peer
        )
        if open_to and ("ports" not in rule or port in {one["port"] for one in rule["ports"]}):
            return True
    return False


def policies_of(values: Path) -> dict[str | None, Manifest]:
    """NetworkPolicies by component; only a value set that says so has none."""
    found = {component_of(one): one for one in of_kind(rendered(HELMS[-1], values), "NetworkPolicy")}
    assert bool(found) == (values.stem != "open")
    return found


def labels_by_component(manifests: tuple[Manifest, ...]) -> dict[str, dict[str, str]]:
    """One pod's labels of each component."""
    found: dict[str, dict[str, str]] = {}
    for _, pod in pods(manifests):
        labels = pod["metadata"]["labels"]
        found.setdefault(labels["app.kubernetes.io/component"], labels)
    return found


def reached_by(policy: Manifest, labels: dict[str, dict[str, str]]) -> dict[str, set[int]]:
    """Components that its egress lets it reach by their labels, with the ports."""
    found: dict[str, set[int]] = {}
    for rule in policy["spec"]["egress"]:
        for peer in rule.get("to", []):
            for component, each in labels.items():
                if "podSelector" in peer and selects(peer["podSelector"]["matchLabels"], each):
                    found.setdefault(component, set()).update(port["port"] for port in rule.get("ports", []))
    return found


@each_value_set
def test_network_policies_let_routers_reach_workers_and_nobody_else(values: Path) -> None:
    manifests, policies = rendered(HELMS[-1], values), policies_of(values)
    labels = labels_by_component(manifests)
    for workload in workloads(manifests, "worker") if policies else ():
        port = containers(workload["spec"]["template"], init=False)[0]["ports"][0]["containerPort"]
        assert allows(policies["worker"], labels["router"], port)
        assert allows(policies["worker"], labels["worker"], port), "hand-over goes from worker to worker"
        assert not allows(policies["worker"], {"app": "other"}, port)
        assert port in reached_by(policies["router"], labels)["worker"]
        if "deletion-costs" in labels:
            assert allows(policies["worker"], labels["deletion-costs"], port)
            assert port in reached_by(policies["deletion-costs"], labels)["worker"]
    for policy in policies.values():
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


@each_value_set
def test_network_policies_let_clients_of_the_chart_reach_what_they_ask(values: Path) -> None:
    manifests, policies = rendered(HELMS[-1], values), policies_of(values)
    labels = labels_by_component(manifests)
    for component in {"client", "deletion-costs"} & set(policies):
        assert "ingress" not in policies[component]["spec"], "nobody asks them anything"
    if "client" in policies:
        reached = reached_by(policies["client"], labels)
        assert set(reached) == ({"router", "worker"} if of_kind(manifests, "Job") else {"router"})
        for router in workloads(manifests, "router"):
            port = containers(router["spec"]["template"], init=False)[0]["ports"][0]["containerPort"]
            assert allows(policies["router"], labels["client"], port), "helm test and load reach the routers"
            assert port in reached["router"]


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.monitoring:4318", 4318),
        ("https://otlp.example.com/v1", 443),
        ("http://[fd00::7]:4000/x", 4000),
    ],
)
def test_traces_may_leave_to_the_port_of_their_collector(endpoint: str, port: int) -> None:
    manifests = parse(template(HELMS[-1], f"--set=tracing.otlpEndpoint={endpoint}"))
    for policy in of_kind(manifests, "NetworkPolicy"):
        open_ports = {one["port"] for rule in policy["spec"]["egress"] if "to" not in rule for one in rule["ports"]}
        assert (port in open_ports) == (component_of(policy) in {"router", "worker"})
