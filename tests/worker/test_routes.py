"""Probes, models, tokens, metrics, keys."""

from __future__ import annotations

import re

import pytest

from trieway.serving.auth import KeyRing
from trieway.worker.generation import Generation

from .fakes import TABLE, encode
from .harness import Worker, running

BODY = {"model": "tiny", "prompt": "say:x|", "temperature": 0}


def test_probes(worker: Worker) -> None:
    for path in ("/livez", "/readyz", "/health"):
        response = worker.client.get(path)
        assert response.status_code == 200
        assert response.json()["status"] == "ok"
        assert response.headers["server"] == "trieway-worker"
    assert worker.client.get("/health").json()["model"] == "tiny"


def test_probes_answer_while_a_step_runs(worker: Worker) -> None:
    worker.runner.gate.clear()
    worker.runner.entered.clear()
    generation = worker.call(begin(worker))
    assert worker.runner.entered.wait(30)
    for path in ("/livez", "/readyz", "/metrics", "/v1/models"):
        assert worker.client.get(path).status_code == 200
    worker.runner.gate.set()
    worker.call(end(generation))


async def begin(worker: Worker) -> Generation:
    service = worker.built.service
    job = await service.intake.completion(b'{"prompt": "say:x|"}', service.intake.caller({}))
    return service.begin(job)


async def end(generation: Generation) -> None:
    generation.cancel()


def test_models(worker: Worker) -> None:
    listed = worker.client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny", "tiny-alias"]
    assert listed["data"][0]["max_model_len"] == 512
    assert worker.client.get("/v1/models/tiny").json() == listed["data"][0]
    assert worker.client.get("/v1/models/other").status_code == 404


def test_tokens_there_and_back(worker: Worker) -> None:
    text = "the end, and 😀 é <|end|>"
    told = worker.post("/tokenize", {"prompt": text, "return_token_strs": True})
    assert told["tokens"] == encode(text)
    assert told["count"] == len(encode(text))
    assert told["max_model_len"] == 512
    assert told["token_strs"] == [TABLE[token].decode(errors="replace") for token in encode(text)]
    assert worker.post("/detokenize", {"tokens": told["tokens"]}) == {"prompt": text}
    chat = worker.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert chat["tokens"] == encode("<|user|>hi<|end|><|bot|>")
    bare = worker.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False})
    assert bare["tokens"] == encode("<|user|>hi<|end|>")


def test_the_tokenizers_own_first_token_can_be_left_out() -> None:
    with running(bos_text="<|bot|>") as worker:
        assert worker.post("/tokenize", {"prompt": "a"})["count"] == 2
        assert worker.post("/tokenize", {"prompt": "a", "add_special_tokens": False})["count"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": ["a", "b"]}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [99_999]}),
        ("/detokenize", {"tokens": "x"}),
        ("/cache/prefix", {}),
        ("/cache/prefix", {"prompt": ""}),
    ],
)
def test_senseless_questions(worker: Worker, path: str, body: dict[str, object]) -> None:
    response = worker.client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/cache/prefix"])
def test_another_models_questions(worker: Worker, path: str) -> None:
    assert worker.client.post(path, json={"model": "other", "prompt": "x", "tokens": [1]}).status_code == 404


def test_request_ids_are_echoed_or_made(worker: Worker) -> None:
    assert worker.client.get("/livez", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert worker.client.get("/livez", headers={"x-request-id": "two words"}).headers["x-request-id"].startswith("req-")
    assert worker.client.post("/v1/completions", content=b"{").headers["x-request-id"].startswith("req-")


def test_metrics_count_what_happened() -> None:
    with running() as worker:
        prompt = "a prompt with SECRET words"
        worker.complete(prompt, max_tokens=3)
        worker.complete(prompt, max_tokens=3)
        worker.client.post("/v1/completions", content=b"{")
        page = worker.client.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        assert "SECRET" not in page.text
        count = len(encode(prompt))
        for line in (
            f"trieway_worker_prompt_tokens_total {2 * count}.0",
            f"trieway_worker_cached_tokens_total {count - 1}.0",
            "trieway_worker_generated_tokens_total 6.0",
            "trieway_worker_finished_requests_total 2.0",
            "trieway_worker_ttft_seconds_count 2.0",
            "trieway_worker_inter_token_seconds_count 4.0",
            "trieway_worker_queue_seconds_count 2.0",
            f"trieway_worker_step_seconds_count {len(worker.runner.steps)}.0",
            'trieway_worker_responses_total{code="200",route="completion"} 2.0',
            'trieway_worker_responses_total{code="400",route="completion"} 1.0',
            "trieway_worker_running_requests 0.0",
            'trieway_worker_pool_slots{component="full",state="running",tier="device"} 0.0',
        ):
            assert line in page.text.splitlines()
        families = re.findall(r"^# TYPE (\S+)", page.text, re.MULTILINE)
        assert all(name.startswith("trieway_worker_") for name in families)
        assert all(name.removesuffix("_total").removesuffix("_created").rsplit("_", 1)[1] in UNITS for name in families)


UNITS = {"requests", "tokens", "seconds", "slots", "blocks", "subscribers", "steps", "responses"}


def test_no_prompt_is_logged(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        worker.complete("my SECRET words say:ANSWER|", max_tokens=30)
        worker.client.post("/v1/completions", json={"prompt": "SECRET", "temperature": "SECRET"})
        worker.client.post("/v1/completions", content=b'{"prompt": "SECRET')
    told = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("trieway"))
    assert "generated=" in told
    assert "SECRET" not in told
    assert "ANSWER" not in told


def test_keys_guard_all_but_probes_and_metrics() -> None:
    ring = KeyRing({"key-a": "a", "key-b": "b"}, admin_key="root")
    with running(ring=ring, secret=b"fleet") as worker:
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            assert worker.client.get(path).status_code == 200
        for method, path in (("POST", "/v1/completions"), ("POST", "/tokenize"), ("GET", "/v1/models"),
                             ("GET", "/cache/stats"), ("POST", "/cache/prefix"), ("POST", "/detokenize")):  # fmt: skip
            response = worker.client.request(method, path, json=BODY)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
        key = {"authorization": "Bearer key-a"}
        assert worker.client.post("/v1/completions", json=BODY, headers=key).status_code == 200
        assert worker.client.post("/cache/flush", headers=key).status_code in (401, 403)
        assert worker.client.post("/cache/flush").status_code == 401
        admin = {"authorization": "Bearer root"}
        assert worker.client.post("/cache/flush", headers=admin).status_code == 200


def test_a_keys_tenant_is_its_namespace() -> None:
    prompt = "a text that two tenants send, each with a key of its own"
    with running(ring=KeyRing({"key-a": "a", "key-b": "b"}), secret=b"fleet") as worker:

        def cached(**headers: str) -> int:
            usage = worker.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}, **headers)["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        key_a, key_b = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
        assert cached(**key_a) == 0
        assert cached(**key_b) == 0
        assert cached(**key_b, **{"x-tenant-id": "a"}) > 0, "b's own: a client cannot name its tenant"
        assert cached(**worker.fleet(**{"x-trieway-tenant": "a"})) > 0, "a router can"
        assert cached(**key_b, **{"x-trieway-tenant": "c"}) > 0, "and nobody else"
    with running(ring=KeyRing({"key": "é"}), secret=b"fleet") as worker:
        assert cached(authorization="Bearer key") == 0
        headers = {**worker.fleet(), "x-trieway-tenant": "é".encode()}
        response = worker.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}, headers=headers)
        assert int(response.headers["x-trieway-cached-tokens"]) > 0


def test_the_published_token_opens_nothing_once_keys_exist() -> None:
    with running(ring=KeyRing({"key-a": None})) as worker:
        assert worker.client.post("/v1/completions", json=BODY, headers=worker.fleet()).status_code == 401
