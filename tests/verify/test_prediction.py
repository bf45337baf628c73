"""What the router predicts is what the worker reuses: sent one by one, on texts of every kind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.verify.conftest import MODEL
from tests.verify.fleet import report, scaled, tree_of, up
from tests.verify.texts import code, prose, varied

pytestmark = [pytest.mark.model, pytest.mark.fleet, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent
BLOCK_BYTES = 64
Body = dict[str, Any]


class Varied:
    """Requests that share prefixes with earlier ones at every kind of place."""

    def __init__(self, seed: int, tokenize: Callable[[str], list[int]]) -> None:
        self.rng = random.Random(seed)
        self.tokenize = tokenize
        self.texts = [prose(self.rng, 60), code(self.rng, 12)]
        self.chats: list[list[Body]] = []
        self.salts = [None, None, None, "salt", "other", ""]

    def text(self) -> str:
        rng = self.rng
        base = rng.choice(self.texts)
        keep = base[: rng.randrange(len(base) + 1)] if rng.random() < 0.7 else ""
        special = rng.choice(["", "", "", "<|im_end|>", "<|endoftext|> and <|im_start|>user"])
        text = keep + special + varied(rng, rng.randrange(3, 50))
        if len(self.texts) < 60:
            self.texts.append(text)
        return text or "empty"

    def completion(self) -> tuple[str, Body]:
        prompt: Any = self.text()
        if self.rng.random() < 0.15:
            prompt = self.tokenize(prompt)
        elif self.rng.random() < 0.03:
            prompt = [self.rng.randrange(20, 49_000) for _ in range(60)]
        return "/v1/completions", {"prompt": prompt}

    def chat(self, tools: bool = False) -> tuple[str, Body]:
        rng = self.rng
        if self.chats and rng.random() < 0.5:
            messages = [*rng.choice(self.chats), {"role": "user", "content": self.text()}]
        else:
            messages = [
                {"role": "system", "content": rng.choice(self.texts[:3])},
                {"role": "user", "content": self.text()},
            ]
        if tools and rng.random() < 0.5:
            arguments = f'{{"city": "{rng.randrange(99)}"}}'
            call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": self.text()},
            ]
        body: Body = {"messages": messages}
        if tools and rng.random() < 0.7:
            body["chat_template_kwargs"] = {"tool_list": [{"name": "look_up", "description": "Zoë's <b>map</b>"}]}
        return "/v1/chat/completions", body

    def answered(self, body: Body, text: str) -> None:
        if "messages" in body and len(self.chats) < 40 and len(body["messages"]) < 9:
            self.chats.append([*body["messages"], {"role": "assistant", "content": text}])


def settle(client: httpx.Client, url: str, worker_url: str) -> None:
    """Wait until the router has applied the feed as far as the worker has published it."""
    number = client.get(f"{worker_url}/cache/stats").json()["number"]
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        if all((row["number"] or 0) >= number for row in tree_of(url)["workers"].values()):
            return
        time.sleep(0.002)
    raise AssertionError("the feed was not applied")


def vocabulary(worker_url: str) -> list[bytes]:
    from trieway.meta_tree.chain import FleetKey
    from trieway.serving.handshake import decode_vocabulary

    token = FleetKey.from_secret(None).feed_token
    answer = httpx.get(
        f"{worker_url}/cache/model?part=vocabulary", headers={"authorization": f"Bearer {token}"}, timeout=30
    )
    return decode_vocabulary(answer.raise_for_status().content)


def compare(url: str, seed: int, count: int, kinds: list[str]) -> tuple[int, int, int]:
    """(requests, requests with some reuse, worst difference in bytes) between prediction and receipt."""
    client = httpx.Client(timeout=120)
    (row,) = tree_of(url)["workers"].values()
    worker_url = row["url"]
    table = vocabulary(worker_url)

    def tokenize(text: str) -> list[int]:
        return list(client.post(f"{worker_url}/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"])

    source = Varied(seed, tokenize)
    worst = reused = 0
    for index in range(count):
        kind = source.rng.choice(kinds)
        path, body = source.completion() if kind == "completion" else source.chat(tools=kind == "tools")
        body |= {"model": MODEL, "max_tokens": source.rng.randrange(1, 12), "seed": index, "temperature": 0.9}
        salt = source.rng.choice(source.salts)
        if salt is not None:
            body["cache_salt"] = salt
        answer = client.post(url + path, json=body)
        assert answer.status_code == 200, answer.text
        predicted = int(answer.headers["x-trieway-predicted-tokens"])
        cached = int(answer.headers["x-trieway-cached-tokens"])
        payload = answer.json()
        assert payload["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        reused += cached > 0
        if predicted != cached:
            ids = prompt_ids(client, worker_url, path, body)
            low, high = sorted((predicted, cached))
            difference = sum(len(table[token]) for token in ids[low:high])
            worst = max(worst, difference)
            assert difference < 2 * BLOCK_BYTES, f"request {index} ({kind}): predicted {predicted}, cached {cached}"
        if "messages" in body:
            source.answered(body, payload["choices"][0]["message"]["content"])
        settle(client, url, worker_url)
    client.close()
    return count, reused, worst


def prompt_ids(client: httpx.Client, worker_url: str, path: str, body: Body) -> list[int]:
    if isinstance(body.get("prompt"), list):
        return list(body["prompt"])
    keys = ("model", "prompt", "messages", "chat_template_kwargs")
    question = {key: body[key] for key in keys if key in body}
    return list(client.post(f"{worker_url}/tokenize", json=question).json()["tokens"])


@pytest.mark.parametrize(
    ("name", "share", "kinds", "template"),
    [
        ("text and chats", 0.6, ["completion", "completion", "chat"], None),
        ("template with tools", 0.2, ["tools"], "tools.jinja"),
        ("template with a date", 0.2, ["chat"], "dated.jinja"),
    ],
    ids=["plain", "tools", "dated"],
)
def test_prediction_and_receipt_differ_by_less_than_two_blocks(
    folder: Path, name: str, share: float, kinds: list[str], template: str | None
) -> None:
    arguments = ["--kv-tokens", "200000"]
    if template is not None:
        arguments += ["--chat-template", str(HERE / "templates" / template)]
    with up(folder, *arguments, workers=1) as fleet:
        count, reused, worst = compare(fleet.url, 11, scaled(int(1000 * share)), kinds)
    report(f"{name}: {count} requests one by one, {reused} with reuse, worst difference {worst} bytes")
    assert reused > count / 4 or template == "dated.jinja"
