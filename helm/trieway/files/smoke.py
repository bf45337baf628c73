"""`helm test`: each model of the release answers a completion through the router. Arguments: URL, key file, models."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path


def ask(path, body=None):
    """The answer's JSON. `body` None: GET."""
    headers = {"content-type": "application/json"} | KEY
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=300) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{path}: HTTP {error.code}: {error.read(2000).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"{path}: {error}")


URL, KEY_FILE, *MODELS = sys.argv[1:]
KEY = {"authorization": "Bearer " + Path(KEY_FILE).read_text().strip()} if KEY_FILE else {}
served = {model["id"] for model in ask("/v1/models")["data"]}
for model in MODELS:
    if model not in served:
        sys.exit(f"model {model} is not served yet; there are {sorted(served)}")
    answer = ask("/v1/completions", {"model": model, "prompt": "Why is the sky blue?", "max_tokens": 8})
    usage = answer["usage"]
    if not usage["completion_tokens"]:
        sys.exit(f"model {model} answered nothing: {answer}")
    print(f"{model}: {usage['completion_tokens']} tokens after {usage['prompt_tokens']}")
