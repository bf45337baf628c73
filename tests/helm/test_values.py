"""Values, schema, README, alerts, dashboard and docs agree with each other. Needs nothing but the checkout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.tools import chart_readme
from trieway.router.metrics import RouterMetrics
from trieway.serving.config import RouterConfig, WorkerConfig
from trieway.serving.config_values import settings
from trieway.worker.metrics import Metrics

from .chart import CHART, ROOT, dashboard_queries, metric_names, rules

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    target: Any = SCHEMA
    for key in node["$ref"].removeprefix("#/").split("/"):
        target = target[key]
    return dict(target)


def objects(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, schema) of every object with known properties."""
    node = resolve(node)
    if "properties" in node:
        yield path, node
        for name, child in node["properties"].items():
            yield from objects(child, f"{path}.{name}".strip("."))
    if isinstance(node.get("items"), dict):
        yield from objects(node["items"], f"{path}[]")


def test_every_object_of_the_schema_refuses_what_it_does_not_know() -> None:
    for path, node in objects(SCHEMA):
        assert node.get("additionalProperties") is False, path


def test_every_value_says_what_it_means() -> None:
    for path, node in objects(SCHEMA):
        for name, child in node["properties"].items():
            told = resolve(child).get("description")
            numbers_of_kubernetes = re.search(r"(Probe|resources|image)$", path)
            assert told or numbers_of_kubernetes, f"{path}.{name} has no description"


def test_every_default_is_in_the_schema_and_every_value_has_a_default() -> None:
    def compare(node: dict[str, Any], values: Any, path: str) -> None:
        node = resolve(node)
        known = node.get("properties")
        if known is None or not isinstance(values, dict):
            return
        if re.search(r"(Probe|resources|image)$", path) and path != "image":
            assert values.keys() <= known.keys(), path
            return
        assert values.keys() == known.keys() - ({"global"} if not path else set()), path
        for name in values:
            compare(known[name], values[name], f"{path}.{name}".strip("."))

    compare(SCHEMA, VALUES, "")


def test_a_model_may_say_all_that_worker_says() -> None:
    worker = SCHEMA["properties"]["worker"]["properties"]
    model = SCHEMA["properties"]["models"]["items"]["properties"]
    for name in worker:
        assert model[name] == {"$ref": f"#/properties/worker/properties/{name}"}


def test_tensor_parallelism_above_one_is_not_a_value() -> None:
    assert SCHEMA["properties"]["worker"]["properties"]["tensorParallel"]["maximum"] == 1


def test_the_readme_is_the_one_that_schema_and_values_make() -> None:
    assert (CHART / "README.md").read_text() == chart_readme.render(), "run python -m tests.tools.chart_readme"


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert chart["appVersion"] == version[1]


@pytest.mark.parametrize(("part", "kind"), [("router", RouterConfig), ("worker", WorkerConfig)])
def test_every_setting_that_the_chart_claims_for_itself_is_a_setting(part: str, kind: type[Any]) -> None:
    checks = (CHART / "templates" / "_checks.tpl").read_text()
    both = re.search(r"\$both := list (.*?) -", checks)
    own = re.search(rf'"{part}" \(concat \$both \(list (.*?)\)\)', checks)
    assert both is not None
    assert own is not None
    claimed = set(re.findall(r'"(\w+)"', both[1] + own[1]))
    assert claimed <= settings(kind).keys() | {"worker"}


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", OPERATIONS, re.MULTILINE | re.DOTALL))
    named = [rule["alert"] for rule in rules() if "alert" in rule]
    assert len(named) == len(set(named))
    for alert in named:
        assert "\nDo: " in sections.get(alert, ""), f"docs/operations.md: {alert}"
    assert set(sections) <= set(named), "no section is left of an alert that is gone"


def test_every_alert_has_a_severity_a_summary_and_a_description() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
            assert rule["annotations"].keys() == {"summary", "description"}


def families() -> set[str]:
    """Every metric that router and worker declare, with the endings of their kinds."""
    from trieway.worker.core.sequence import SchedulerStats

    stats = SchedulerStats(**dict.fromkeys(SchedulerStats.__dataclass_fields__, 0))
    worker = Metrics(lambda: stats, lambda: 0)
    router = RouterMetrics()
    router.watch(list, lambda: {"blocks": 0, "bytes": 0}, lambda: 1.0)
    found = set()
    for page in (worker.page().decode(), router.render().decode()):
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE):
            found |= {name, *((f"{name}_{end}" for end in ("bucket", "sum", "count")) if kind == "histogram" else ())}
    return found


def test_rules_and_dashboard_read_only_metrics_that_exist() -> None:
    known = families() | {rule["record"] for rule in rules() if "record" in rule}
    for where, query in {
        **{rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()},
        **dashboard_queries(),
    }.items():
        assert metric_names(query) <= known, f"{where}: {sorted(metric_names(query) - known)}"


def test_the_dashboard_has_unique_panels_that_do_not_overlap() -> None:
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for query in dashboard_queries().values():
        assert 'namespace=~"$namespace"' in query


def test_no_template_or_value_names_this_machine() -> None:
    for path in CHART.rglob("*"):
        if path.is_file():
            assert not re.search(r"localhost|127\.0\.0\.1", path.read_text()), path
