"""The chart's README, made from values.schema.json (meanings) and values.yaml (defaults).

`python -m tests.tools.chart_readme` writes it, `--check` only compares (exit code 1 when it is stale). Does not know
what the values do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm" / "trieway"
HEAD = """# The Trieway chart

Made from `values.schema.json` and `values.yaml` by `python -m tests.tools.chart_readme`; edit those.

```
helm install trieway helm/trieway                       # two routers, two CPU workers with the packaged model
helm install trieway helm/trieway --set mode=kuberay    # the same as a RayService (needs the KubeRay operator)
helm test trieway                                       # a completion of each model
```

Kubernetes 1.31 or newer, Helm 3.17 or newer. What the alerts mean and what to do is in
[docs/operations.md](../../docs/operations.md).

Complete values to start from are in [examples](examples): [one GPU node](examples/one-gpu-node.yaml),
[a fleet of four models](examples/fleet.yaml), [KubeRay](examples/kuberay-fleet.yaml); the commands that they need stand
at their heads.

Models are entries of `models`; each takes every value of `worker` too, and its own win:

```yaml
models:
  - name: smollm2-135m
  - name: llama-8b
    fetch: {repo: meta-llama/Llama-3.1-8B-Instruct, revision: main}
    servedModelName: meta-llama/Llama-3.1-8B-Instruct
    replicas: 4
    kvTokens: 400000
    pageSize: 16
    gpu: {count: 1}
    resources: {requests: {cpu: "4", memory: 24Gi}, limits: {memory: 32Gi}}
    modelCache: {type: perPod, size: 40Gi}
hub: {existingSecret: hub-token}
```

`kind: Deployment` in place of a StatefulSet lets a model that shrinks lose its cheapest cache first (`deletionCost`).

Keys: what `auth` does not give is drawn at the first install and found again at each upgrade. Tools that only render
(`helm template`, and GitOps controllers built on it) cannot find it again: give `auth.existingSecret` there.

| value | default | meaning |
|---|---|---|
"""
INLINE_CHARS_MAX = 90


def rows() -> Iterator[tuple[str, str, str]]:
    """(path, default, meaning) of every value, in the schema's order."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    yield from _rows(schema, "", defaults)


def _rows(node: dict[str, Any], path: str, default: Any) -> Iterator[tuple[str, str, str]]:
    for name, child in node.get("properties", {}).items():
        if "$ref" in child:
            continue
        where = f"{path}.{name}" if path else name
        value = default.get(name) if isinstance(default, dict) else None
        if any("description" in inner for inner in child.get("properties", {}).values()):
            yield where, "", _meaning(child)
            yield from _rows(child, where, value)
        else:
            yield where, _shown(value), _meaning(child)
            items = child.get("items", {})
            if items.get("properties"):
                yield from _rows(items, f"{where}[]", None)


def _meaning(node: dict[str, Any]) -> str:
    words = [str(node["description"])]
    if "enum" in node:
        words.append("One of " + ", ".join(f"`{choice}`" for choice in node["enum"]))
    return ". ".join(words).replace("|", "\\|")


def _shown(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    text = json.dumps(value) if not isinstance(value, str) else value
    if len(text) > INLINE_CHARS_MAX:
        return "see values.yaml"
    return f"`{text}`"


def render() -> str:
    """The whole README."""
    return HEAD + "".join(f"| `{path}` | {default} | {meaning} |\n" for path, default, meaning in rows())


def main(arguments: list[str]) -> int:
    """Writes or checks the file; returns the exit code."""
    target = CHART / "README.md"
    if arguments == ["--check"]:
        stale = not target.exists() or target.read_text("utf-8") != render()
        if stale:
            print(f"{target.name} is stale: run python -m tests.tools.chart_readme", file=sys.stderr)
        return int(stale)
    target.write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
