"""Runs the real supervisor over stand-in children: `standin_fleet.py FOLDER '{"worker-0": ["--deaf"], ...}'`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx

from trieway.fleet.children import ChildSpec
from trieway.fleet.lifecycle import Limits, Role
from trieway.fleet.ports import any_free
from trieway.fleet.supervisor import Outlets, Supervisor

LIMITS = Limits(backoff_first_s=0.05, backoff_max_s=0.2, start_max_s=30, router_drain_max_s=2, worker_drain_max_s=2)


def main() -> int:
    folder, children = Path(sys.argv[1]), json.loads(sys.argv[2])
    specs = []
    for name, options in children.items():
        port = any_free("127.0.0.1")
        command = [sys.executable, str(Path(__file__).with_name("standin_child.py")), "--name", name]
        command += ["--port", str(port), "--journal", str(folder / "journal"), *options]
        role = Role.ROUTER if name == "router" else Role.WORKER
        ready_url = f"http://127.0.0.1:{port}/readyz"
        specs.append(ChildSpec(name=name, role=role, command=tuple(command), ready_url=ready_url))

    async def whole(client: httpx.AsyncClient) -> bool:
        return True

    def emit(kind: str, **values: object) -> None:
        print(json.dumps({"kind": kind, **values}), flush=True)

    outlets = Outlets(
        say=lambda text: emit("say", text=text),
        pass_on=lambda name, line: emit("log", name=name, line=line),
        show=lambda phases: None,
        ready=lambda pids: emit("ready", pids=pids),
    )

    async def run() -> int:
        supervisor = Supervisor(specs, LIMITS, whole, outlets)
        code = await supervisor.run()
        emit("end", failure=supervisor.failure)
        return code

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
