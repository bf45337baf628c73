"""What the chart promises of its objects: hardened pods, time to drain, and references that lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .chart import HELMS, VALUES, Manifest, containers, name, of_kind, pods, rendered, selects

pytestmark = [pytest.mark.helm, pytest.mark.usefixtures("helms")]
THEIRS = {"proxy", "warm"}
"""Containers that a value set brings."""
OWN_OBJECTS = {
    ("Secret", "my-keys"), ("Secret", "hub-token"), ("Secret", "otlp"), ("Secret", "redis"), ("Secret", "tls"),
    ("Secret", "pull"), ("PersistentVolumeClaim", "models"), ("PersistentVolumeClaim", "reports"),
    ("ServiceAccount", "mine"), ("ServiceAccount", "default"), ("ConfigMap", "env"),
}  # fmt: skip
"""What the value sets say that the user has."""

each_value_set = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def render(values: Path) -> tuple[Manifest, ...]:
    return rendered(HELMS[-1], values)


def all_pods(values: Path) -> Iterator[tuple[str, Manifest]]:
    return pods(render(values))


@each_value_set
def test_every_pod_meets_the_restricted_pod_security_standard(values: Path) -> None:
    for whose, pod in all_pods(values):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, whose
        assert spec["securityContext"]["runAsUser"] > 0, whose
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", whose
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), whose
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"secret", "configMap", "emptyDir", "persistentVolumeClaim", "ephemeral", "projected"}, whose
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, whose
            assert context["capabilities"] == {"drop": ["ALL"]}, whose
            assert context["runAsNonRoot"] is True, whose
            assert not [port for port in container.get("ports", []) if "hostPort" in port], whose


@each_value_set
def test_root_file_systems_are_read_only_and_tmp_is_not(values: Path) -> None:
    for whose, pod in all_pods(values):
        for container in containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, whose
            if container["name"] not in THEIRS:
                assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}, whose


@each_value_set
def test_keys_are_mounted_read_only_for_the_group_alone(values: Path) -> None:
    for whose, pod in all_pods(values):
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, whose
                for container in containers(pod):
                    for mount in container.get("volumeMounts", []):
                        if mount["name"] == volume["name"]:
                            assert mount["readOnly"] is True, whose


@each_value_set
def test_only_what_asks_the_api_server_has_a_token(values: Path) -> None:
    for whose, pod in all_pods(values):
        asks = whose.startswith("Deployment") or whose.endswith("head")
        if not asks:
            assert pod["spec"]["automountServiceAccountToken"] is False, whose
    for role in of_kind(render(values), "Role"):
        assert role["rules"] == [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        ]


@each_value_set
def test_every_container_of_ours_states_what_it_needs(values: Path) -> None:
    for whose, pod in all_pods(values):
        for container in containers(pod):
            if container["name"] not in THEIRS:
                assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, whose
                assert "memory" in container["resources"]["limits"] or "models" in whose, whose


@each_value_set
def test_the_grace_period_covers_pre_stop_and_drain(values: Path) -> None:
    for whose, pod in all_pods(values):
        container = containers(pod, init=False)[0]
        flags = dict(re.findall(r"--([a-z-]+)=(\S+)", " ".join(container.get("args", []))))
        if "drain-timeout-s" in flags:
            hook = container.get("lifecycle", {}).get("preStop", {})
            told = dict(re.findall(r"--(timeout|pause)-s=(\d+)", " ".join(hook.get("exec", {}).get("command", []))))
            pause = hook.get("sleep", {}).get("seconds", 0) + max([0, *map(int, told.values())])
            assert pod["spec"]["terminationGracePeriodSeconds"] >= pause + int(flags["drain-timeout-s"]) + 10, whose


@each_value_set
def test_servers_have_the_three_probes_and_a_worker_has_minutes_to_load(values: Path) -> None:
    for one in of_kind(render(values), "Deployment", "StatefulSet"):
        container = containers(one["spec"]["template"], init=False)[0]
        for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
            assert container[probe]["httpGet"] == {"path": path, "port": "http", "scheme": "HTTP"}, name(one)
        if one["kind"] == "StatefulSet":
            startup = container["startupProbe"]
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


@each_value_set
def test_gpus_are_asked_for_by_the_configured_name_and_cpu_workers_bound_their_threads(values: Path) -> None:
    for whose, pod in all_pods(values):
        for container in containers(pod, init=False):
            args = container.get("args", [])
            if "--device=cuda" in args:
                gpus = {key for key in container["resources"]["limits"] if key not in {"cpu", "memory"}}
                assert gpus, whose
                assert container["image"].endswith(("-cuda", ":7", ":v1")) or "@" in container["image"], whose
            elif "--device=cpu" in args:
                threads = next(one for one in container["env"] if one["name"] == "OMP_NUM_THREADS")
                assert threads["valueFrom"]["resourceFieldRef"]["containerName"] == container["name"], whose


def labels_of_pods(manifests: tuple[Manifest, ...]) -> list[dict[str, str]]:
    return [pod["metadata"]["labels"] for _, pod in pods(manifests)]


def selector_of(one: Manifest) -> dict[str, str] | None:
    """What an object selects pods by."""
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        return dict(spec["selector"])
    if one["kind"] == "NetworkPolicy":
        return dict(spec["podSelector"]["matchLabels"])
    if one["kind"] in {"PodDisruptionBudget", "Deployment", "StatefulSet"}:
        return dict(spec["selector"]["matchLabels"])
    return None


@each_value_set
def test_every_selector_finds_pods(values: Path) -> None:
    manifests = render(values)
    labels = labels_of_pods(manifests)
    for one in manifests:
        selector = selector_of(one)
        assert selector is None or any(selects(selector, each) for each in labels), f"{name(one)} selects nothing"


@each_value_set
def test_no_two_workloads_select_each_others_pods(values: Path) -> None:
    manifests = of_kind(render(values), "Deployment", "StatefulSet")
    for one in manifests:
        for other in manifests:
            if one is not other:
                found = selects(one["spec"]["selector"]["matchLabels"], other["spec"]["template"]["metadata"]["labels"])
                assert not found, f"{name(one)} selects pods of {name(other)}"


@each_value_set
def test_every_port_that_is_named_exists(values: Path) -> None:
    manifests = render(values)
    ports = [
        (pod["metadata"]["labels"], {port.get("name") for one in containers(pod) for port in one.get("ports", [])})
        for _, pod in pods(manifests)
    ]
    for service in of_kind(manifests, "Service"):
        for labels, named in ports:
            if selects(service["spec"]["selector"], labels):
                assert {port["targetPort"] for port in service["spec"]["ports"]} <= named, name(service)
    for whose, pod in pods(manifests):
        for container in containers(pod, init=False):
            named = {port.get("name") for port in container.get("ports", [])}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = container.get(kind, {}).get("httpGet", {}).get("port", "http")
                if kind in container and isinstance(port, str):
                    assert port in named, f"{whose}: {kind}"


def references(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, str, str]]:
    """(from, kind, name) of everything that names another object of the namespace."""
    for whose, pod in pods(manifests):
        spec = pod["spec"]
        if "serviceAccountName" in spec:
            yield whose, "ServiceAccount", spec["serviceAccountName"]
        for pull in spec.get("imagePullSecrets", []):
            yield whose, "Secret", pull["name"]
        for volume in spec["volumes"]:
            if "secret" in volume:
                yield whose, "Secret", volume["secret"]["secretName"]
            if "persistentVolumeClaim" in volume:
                yield whose, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
        for container in containers(pod):
            for variable in container.get("env", []):
                if "secretKeyRef" in variable.get("valueFrom", {}):
                    yield whose, "Secret", variable["valueFrom"]["secretKeyRef"]["name"]
    for one in manifests:
        spec = one.get("spec", {})
        if "scaleTargetRef" in spec:
            yield name(one), spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]
        if one["kind"] == "StatefulSet":
            yield name(one), "Service", spec["serviceName"]
        if one["kind"] == "Ingress":
            for rule in spec["rules"]:
                for path in rule["http"]["paths"]:
                    yield name(one), "Service", path["backend"]["service"]["name"]
        if one["kind"] == "HTTPRoute":
            for rule in spec["rules"]:
                for backend in rule["backendRefs"]:
                    yield name(one), "Service", backend["name"]
        if one["kind"] == "RoleBinding":
            yield name(one), "Role", one["roleRef"]["name"]
            for subject in one["subjects"]:
                yield name(one), "ServiceAccount", subject["name"]


@each_value_set
def test_every_reference_leads_to_an_object_of_the_chart_or_of_the_user(values: Path) -> None:
    manifests = render(values)
    there = {(one["kind"], one["metadata"]["name"]) for one in manifests} | OWN_OBJECTS
    for whose, kind, wanted in references(manifests):
        assert (kind, wanted) in there, f"{whose} names {kind} {wanted}"


@each_value_set
def test_every_mount_has_its_volume_and_every_volume_its_mount(values: Path) -> None:
    manifests = render(values)
    claims = {
        name(one): {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        for one in of_kind(manifests, "StatefulSet")
    }
    for whose, pod in pods(manifests):
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | claims.get(whose, set())
        mounted = {mount["name"] for one in containers(pod) for mount in one.get("volumeMounts", [])}
        assert mounted == volumes, whose


@each_value_set
def test_the_router_watches_the_service_that_selects_the_workers(values: Path) -> None:
    manifests = render(values)
    for router in of_kind(manifests, "Deployment"):
        args = containers(router["spec"]["template"], init=False)[0]["args"]
        flags = dict(arg[2:].split("=", 1) for arg in args if "=" in arg)
        (service,) = (s for s in of_kind(manifests, "Service") if s["metadata"]["name"] == flags["kubernetes-service"])
        assert service["metadata"]["namespace"] == flags["kubernetes-namespace"]
        assert service["spec"]["clusterIP"] == "None"
        assert [port["name"] for port in service["spec"]["ports"]] == [flags["kubernetes-port-name"]]
        for worker in of_kind(manifests, "StatefulSet"):
            assert selects(service["spec"]["selector"], worker["spec"]["template"]["metadata"]["labels"])


@each_value_set
def test_service_monitors_select_services_and_name_their_ports(values: Path) -> None:
    manifests = render(values)
    for monitor in of_kind(manifests, "ServiceMonitor"):
        found = [
            service
            for service in of_kind(manifests, "Service")
            if selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
        ]
        assert len(found) == 1, name(monitor)
        ports = {port["name"] for port in found[0]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


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


@each_value_set
def test_network_policies_let_routers_reach_workers_and_nobody_else(values: Path) -> None:
    manifests = render(values)
    policies = {
        one["metadata"]["labels"].get("app.kubernetes.io/component"): one for one in of_kind(manifests, "NetworkPolicy")
    }
    if not policies:
        assert values.stem == "open"
        return
    stranger = {"app": "other"}
    by_component: dict[Any, dict[str, str]] = {}
    for labels in labels_of_pods(manifests):
        by_component.setdefault(labels["app.kubernetes.io/component"], labels)
    for workload in of_kind(manifests, "StatefulSet"):
        port = containers(workload["spec"]["template"], init=False)[0]["ports"][0]["containerPort"]
        assert allows(policies["worker"], by_component["router"], port)
        assert allows(policies["worker"], by_component["worker"], port), "hand-over goes from worker to worker"
        assert not allows(policies["worker"], stranger, port)
        reach = [
            rule
            for rule in policies["router"]["spec"]["egress"]
            if any(
                selects(peer.get("podSelector", {}).get("matchLabels", {"": ""}), by_component["worker"])
                for peer in rule.get("to", [])
            )
        ]
        assert any(port in {one["port"] for one in rule["ports"]} for rule in reach)
    for component in ("router", "worker"):
        assert policies[component]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    if "client" in by_component:
        for router in of_kind(manifests, "Deployment"):
            port = containers(router["spec"]["template"], init=False)[0]["ports"][0]["containerPort"]
            assert allows(policies["router"], by_component["client"], port), "helm test and load reach the routers"


@each_value_set
def test_an_autoscaled_workload_has_no_fixed_count(values: Path) -> None:
    manifests = render(values)
    scaled = {
        (one["spec"]["scaleTargetRef"]["kind"], one["spec"]["scaleTargetRef"]["name"])
        for one in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject")
    }
    for one in of_kind(manifests, "Deployment", "StatefulSet"):
        assert ("replicas" in one["spec"]) != ((one["kind"], one["metadata"]["name"]) in scaled), name(one)


def test_two_renders_differ_in_nothing_but_drawn_keys() -> None:
    from .chart import parse, template

    first, second = ({name(one): one for one in parse(template(HELMS[-1]))} for _ in range(2))
    assert {key for key in first if first[key] != second[key]} == {"Secret prod-trieway-keys"}


def test_changed_keys_roll_the_pods() -> None:
    given = next(path for path in VALUES if path.stem == "given-keys")
    plain = next(path for path in VALUES if path.stem == "minimal")
    sums = {
        pod["metadata"]["annotations"]["checksum/keys"]
        for values in (given, plain)
        for whose, pod in all_pods(values)
        if whose.startswith(("Deployment", "StatefulSet"))
    }
    assert len(sums) == 2
