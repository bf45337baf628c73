"""Prometheus rules hold by promtool: syntax, and a case in which each alert fires and one in which it stays quiet."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from .chart import CHART, of_kind, rendered, rules, value_set

CASES = Path(__file__).parent / "rules_test.yaml"


def alerts() -> list[str]:
    return [rule["alert"] for rule in rules() if "alert" in rule]


def cases() -> list[tuple[str, bool]]:
    """(alert, whether it fires) of each case."""
    return [
        (check["alertname"], bool(check["exp_alerts"]))
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for check in case["alert_rule_test"]
    ]


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_stays_quiet() -> None:
    for alert in alerts():
        assert (alert, True) in cases(), f"{alert} never fires in {CASES.name}"
        assert (alert, False) in cases(), f"{alert} is never quiet in {CASES.name}"


@pytest.mark.helm
def test_promtool_accepts_the_rules(promtool: Path) -> None:
    run = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", CHART / "files" / "rules.yaml"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.helm
def test_promtool_finds_every_alert_to_fire_when_it_should_and_only_then(promtool: Path) -> None:
    run = subprocess.run([promtool, "test", "rules", CASES], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.helm
def test_the_rendered_rules_are_those_that_were_tested_less_the_disabled(helm: str) -> None:
    values = value_set("everything")
    (rendered_rule,) = of_kind(rendered(helm, values), "PrometheusRule")
    shown = [rule for group in rendered_rule["spec"]["groups"] for rule in group["rules"]]
    kept = [rule for rule in rules() if rule.get("alert") != "TriewayRegretHigh"]
    assert len(shown) == len(kept)
    for one, other in zip(shown, kept, strict=True):
        assert one["expr"] == other["expr"]
        assert one.get("for") == other.get("for")
        if "alert" in one:
            assert one["annotations"]["summary"] == other["annotations"]["summary"], "templates pass Helm untouched"
            assert one["annotations"]["runbook_url"].endswith("#" + one["alert"].lower())
            assert one["labels"] == other["labels"] | {"team": "serving"}
