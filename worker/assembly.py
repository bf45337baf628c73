"""Puts one worker together: configuration and a loaded model in, service and app out.

Keeps true: nothing starts here (no thread, socket or timer); tests and the real process take the same way. Does not
know how a model is loaded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION, FleetKey
from trieway.meta_tree.publisher import Publisher
from trieway.serving.auth import KeyRing
from trieway.serving.chat_template import RENDERER_VERSION, ChatTemplate, template_digest
from trieway.serving.config import ConfigError, WorkerConfig
from trieway.serving.handshake import ModelCard, group_id, vocabulary_digest
from trieway.serving.tracing import Tracer
from trieway.worker import admin, prompts
from trieway.worker.core.memory import GeneratedMemory
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import SchedulerConfig
from trieway.worker.engine import Engine
from trieway.worker.feed import HEARTBEAT_S
from trieway.worker.handover import Handover
from trieway.worker.intake import Intake
from trieway.worker.server import build_app
from trieway.worker.service import Service
from trieway.worker.stepper import Runner, Stepper
from trieway.worker.transcript import Vocabulary


class Codec(prompts.Codec, admin.Decoder, Protocol):
    """The tokenizer; `trieway.worker.tokenizer.Tokenizer` is the real one. `bos_text` is '' where none is added."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def bos_text(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A loaded model. `context_tokens` is its own bound, before the configuration's and the pool's."""

    name: str
    aliases: tuple[str, ...] = ()
    codec: Codec
    runner: Runner
    template: ChatTemplate | None
    weights_digest: str
    context_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """One worker, not yet started."""

    service: Service
    app: Any
    stepper: Stepper


def build(
    config: WorkerConfig,
    model: Model,
    *,
    key: FleetKey,
    ring: KeyRing,
    epoch: int,
    clock: Callable[[], float] = time.monotonic,
    heartbeat_s: float = HEARTBEAT_S,
    tracer: Tracer | None = None,
) -> Built:
    """`tracer`, on the same clock, records requests; None records nothing.

    Raises:
        ConfigError: bounds that could not serve together.
    """
    table = model.codec.token_bytes
    card = _card(config, model, key=key, epoch=epoch)
    memory = GeneratedMemory(config.generated_memory_bytes_max, table) if config.prefix_cache else None
    reader = prompts.Prompts(model.codec, key, memory, context_tokens=card.context_tokens)
    stepper = Stepper(
        scheduler=_scheduler(config, card.context_tokens, table),
        runner=model.runner,
        vocabulary=Vocabulary(token_bytes=table, special_ids=model.codec.special_ids),
        rng=random.Random(config.seed),
        clock=clock,
    )
    service = Service(
        card=card,
        engine=Engine(stepper, samples_max=config.running_max + config.waiting_max),
        state=stepper.state(),
        publisher=Publisher(epoch=epoch, seed_id=key.seed_id, group=card.group, ring_events_max=config.ring_events_max),
        prompts=reader,
        intake=Intake(
            card=card,
            template=model.template,
            prompts=reader,
            key=key,
            ring=ring,
            completions_max=config.completions_max,
        ),
        memory=memory,
        eos_ids=model.codec.eos_ids,
        clock=clock,
        heartbeat_s=heartbeat_s,
    )
    routes = admin.Admin(service, model.codec, ring, key.feed_token, started_s=time.time())
    more = Handover(service, model.codec, key.feed_token).routes()
    app = build_app(
        service,
        [*routes.routes(), *more],
        key.feed_token,
        body_max_bytes=config.body_max_bytes,
        tracer=tracer,
    )
    return Built(service=service, app=app, stepper=stepper)


def _card(config: WorkerConfig, model: Model, *, key: FleetKey, epoch: int) -> ModelCard:
    template = model.template
    bos, eos = (template.bos_token, template.eos_token) if template is not None else ("", "")
    digest = template_digest(template.source if template is not None else None)
    vocabulary = vocabulary_digest(model.codec.token_bytes)
    prefix = model.codec.bos_text
    bounds = (model.context_tokens, config.context_tokens_max, config.kv_tokens)
    group = group_id(
        model=model.name,
        weights_digest=model.weights_digest,
        template_digest=digest,
        vocabulary_digest=vocabulary,
        renderer_version=RENDERER_VERSION,
        completion_prefix=prefix,
        bos_token=bos,
        eos_token=eos,
    )
    return ModelCard(
        wire=WIRE_VERSION,
        block_bytes=BLOCK_BYTES,
        seed_id=key.seed_id,
        model=model.name,
        aliases=model.aliases,
        group=group,
        weights_digest=model.weights_digest,
        template=template.source if template is not None else None,
        template_digest=digest,
        reads_clock=template.reads_clock if template is not None else False,
        bos_token=bos,
        eos_token=eos,
        completion_prefix=prefix,
        vocabulary_digest=vocabulary,
        vocabulary_size=len(model.codec.token_bytes),
        renderer_version=RENDERER_VERSION,
        epoch=epoch,
        page_size=config.page_size,
        context_tokens=min(bound for bound in bounds if bound is not None),
        kv_tokens=config.kv_tokens // config.page_size * config.page_size,
    )


def _scheduler(config: WorkerConfig, context_tokens: int, table: Sequence[bytes]) -> Scheduler:
    try:
        bounds = SchedulerConfig(
            page_size=config.page_size,
            kv_tokens=config.kv_tokens,
            context_max=context_tokens,
            batch_tokens_max=config.batch_tokens_max,
            running_max=config.running_max,
            waiting_max=config.waiting_max,
            policy=config.policy,
            wait_max_s=config.wait_max_s,
            prefix_cache=config.prefix_cache,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Scheduler(bounds, table, random.Random(config.seed))
