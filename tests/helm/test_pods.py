"""What the chart promises of its objects: hardened pods, time to drain, and references that lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chart import (
    HELMS,
    VALUES,
    Manifest,
    component_of,
    containers,
    name,
    of_kind,
    pods,
    rendered,
    selects,
    value_set,
    workloads,
)

pytestmark = [pytest.mark.helm, pytest.mark.usefixtures("helms")]
THEIRS = {"proxy", "warm"}
"""Containers that a value set brings."""
OWN_OBJECTS = {
    *(("Secret", name) for name in ("my-keys", "llm-keys", "hub-token", "otlp", "redis", "tls", "pull")),
    ("PersistentVolumeClaim", "models"), ("PersistentVolumeClaim", "reports"), ("ConfigMap", "env"),
    ("ServiceAccount", "mine"), ("ServiceAccount", "default"),
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


RIGHTS = {
    "router": [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}],
    "deletion-costs": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ],
}
"""All that each component may do in its namespace."""


@each_value_set
def test_only_what_asks_the_api_server_has_a_token_and_each_has_its_own_rights(values: Path) -> None:
    manifests = render(values)
    for whose, pod in all_pods(values):
        asks = pod["metadata"]["labels"]["app.kubernetes.io/component"] in {*RIGHTS, "ray-head"}
        if not asks or (whose.startswith("RayService") and not whose.endswith("head")):
            assert pod["spec"]["automountServiceAccountToken"] is False, whose
    accounts: dict[str, set[str | None]] = {}
    for role in of_kind(manifests, "Role"):
        assert role["rules"] == RIGHTS[component_of(role) or ""]
    for binding in of_kind(manifests, "RoleBinding"):
        (subject,) = binding["subjects"]
        accounts.setdefault(subject["name"], set()).add(component_of(binding))
    assert all(len(components) == 1 for components in accounts.values()), "no account has another component's rights"


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
    for one in workloads(render(values), "router", "worker"):
        container = containers(one["spec"]["template"], init=False)[0]
        for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
            assert container[probe]["httpGet"] == {"path": path, "port": "http", "scheme": "HTTP"}, name(one)
        if component_of(one) == "worker":
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
    for router in workloads(manifests, "router"):
        args = containers(router["spec"]["template"], init=False)[0]["args"]
        flags = dict(arg[2:].split("=", 1) for arg in args if "=" in arg)
        (service,) = (s for s in of_kind(manifests, "Service") if s["metadata"]["name"] == flags["kubernetes-service"])
        assert service["metadata"]["namespace"] == flags["kubernetes-namespace"]
        assert service["spec"]["clusterIP"] == "None"
        assert [port["name"] for port in service["spec"]["ports"]] == [flags["kubernetes-port-name"]]
        for worker in workloads(manifests, "worker"):
            assert selects(service["spec"]["selector"], worker["spec"]["template"]["metadata"]["labels"])


@each_value_set
def test_pods_that_end_keep_their_requests_only_where_all_turn_away_by_themselves(values: Path) -> None:
    manifests = render(values)
    workers = workloads(manifests, "worker")
    hooks = [
        "leave" in str(containers(one["spec"]["template"], init=False)[0].get("lifecycle", {}).get("preStop"))
        for one in workers
    ]
    for router in workloads(manifests, "router"):
        args = containers(router["spec"]["template"], init=False)[0]["args"]
        assert ("--kubernetes-leaving" in args) is all(hooks)


@each_value_set
def test_costs_are_kept_of_the_workers_of_deployments(values: Path) -> None:
    manifests = render(values)
    wanted = [one for one in workloads(manifests, "worker") if one["kind"] == "Deployment"]
    keepers = workloads(manifests, "deletion-costs")
    assert len(keepers) == (1 if wanted else 0)
    for keeper in keepers:
        container = containers(keeper["spec"]["template"], init=False)[0]
        flags = dict(arg[2:].split("=", 1) for arg in container["args"])
        selector = dict(pair.split("=") for pair in flags["selector"].split(","))
        for _, pod in pods(manifests):
            labels = pod["metadata"]["labels"]
            assert selects(selector, labels) == (labels["app.kubernetes.io/component"] == "worker")
        for worker in wanted:
            ports = [port["name"] for port in containers(worker["spec"]["template"], init=False)[0]["ports"]]
            assert ports == ["http"], "by this name the keeper finds the port"
            assert "trieway.dev/model" in worker["spec"]["template"]["metadata"]["labels"]
        secret = next(
            volume["secret"] for volume in keeper["spec"]["template"]["spec"]["volumes"] if "secret" in volume
        )
        assert [item["path"] for item in secret["items"]] == ["fleet-secret"], "it is given no other key"
        assert "ports" not in container, "nobody asks it anything"


def test_a_deployment_of_workers_rolls_as_a_stateful_set_does_unless_told_otherwise() -> None:
    manifests = render(value_set("deployments"))
    found = {one["metadata"]["labels"]["trieway.dev/model"]: one for one in workloads(manifests, "worker")}
    assert {model: one["kind"] for model, one in found.items()} == {
        "smollm2-135m": "Deployment", "scaled": "Deployment", "replaced": "Deployment", "kept": "StatefulSet",
    }  # fmt: skip
    strategies = {model: one["spec"].get("strategy") for model, one in found.items()}
    assert strategies["smollm2-135m"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }  # fmt: skip
    assert strategies["scaled"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert strategies["replaced"] == {"type": "Recreate"}
    (scaled,) = of_kind(manifests, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["kind"] == "Deployment"


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


@each_value_set
def test_an_autoscaled_workload_has_no_fixed_count(values: Path) -> None:
    manifests = render(values)
    scaled = {
        (one["spec"]["scaleTargetRef"]["kind"], one["spec"]["scaleTargetRef"]["name"])
        for one in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject")
    }
    for one in workloads(manifests, "router", "worker"):
        assert ("replicas" in one["spec"]) != ((one["kind"], one["metadata"]["name"]) in scaled), name(one)


def test_two_renders_differ_in_nothing_but_drawn_keys() -> None:
    from .chart import parse, template

    first, second = ({name(one): one for one in parse(template(HELMS[-1]))} for _ in range(2))
    assert {key for key in first if first[key] != second[key]} == {"Secret prod-trieway-keys"}


def test_changed_keys_roll_the_pods() -> None:
    given, plain = value_set("given-keys"), value_set("minimal")
    sums = {
        pod["metadata"]["annotations"]["checksum/keys"]
        for values in (given, plain)
        for whose, pod in all_pods(values)
        if whose.startswith(("Deployment", "StatefulSet"))
    }
    assert len(sums) == 2
