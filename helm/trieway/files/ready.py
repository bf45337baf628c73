"""Before a load test: waits until the server answers and serves each model, and makes the folder for the reports.

Arguments: URL, file with the API key (or empty), longest wait in seconds, folder, models.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

URL, KEY_FILE, WAIT_S, FOLDER, *MODELS = sys.argv[1:]
PAUSE_S = 2


def served(headers):
    """The models that are served now, or why that cannot be said."""
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + "/v1/models", headers=headers), timeout=10) as answer:
            return {model["id"] for model in json.load(answer)["data"]}, ""
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            sys.exit(f"{URL} refuses the API key: HTTP {error.code}")
        return set(), f"HTTP {error.code}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return set(), str(error)


Path(FOLDER).mkdir(parents=True, exist_ok=True)
key = {"authorization": "Bearer " + Path(KEY_FILE).read_text().strip()} if KEY_FILE else {}
until = time.monotonic() + float(WAIT_S)
while True:
    there, why = served(key)
    missing = sorted(set(MODELS) - there)
    if not why and not missing:
        break
    if time.monotonic() > until:
        sys.exit(f"{URL} is not ready after {WAIT_S} s: {why or f'not served: {missing}'}")
    time.sleep(PAUSE_S)
print(f"{URL} serves {', '.join(sorted(there))}; reports go to {FOLDER}")
