"""A stand-in for a worker or a router: answers /readyz, and misbehaves on request. Needs the standard library only."""

from __future__ import annotations

import argparse
import http.server
import os
import signal
import subprocess
import sys
from pathlib import Path


class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True, help="a line for each start and each clean end")
    parser.add_argument("--name", required=True)
    parser.add_argument("--die", type=int, help="exit with this code at start")
    parser.add_argument("--reason", help="say this before dying, as a user's mistake")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--grandchild", action="store_true", help="start a process that outlives a plain kill")
    asked = parser.parse_args()

    def note(what: str) -> None:
        with asked.journal.open("a") as journal:
            journal.write(f"{what} {asked.name} {os.getpid()}\n")

    def leave(number: int, frame: object) -> None:
        note("left")
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if asked.deaf else leave)
    note("start")
    if asked.die is not None:
        if asked.reason:
            print(f"trieway: error: {asked.reason}", file=sys.stderr)
        sys.exit(asked.die)
    if asked.grandchild:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with asked.journal.open("a") as journal:
            journal.write(f"start {asked.name}-child {sleeper.pid}\n")
    server = http.server.HTTPServer(("127.0.0.1", asked.port), Ready)
    print(f"listening on {asked.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
