"""From a request's headers and body to a job: who asks, in which namespace, which prompts, how many tokens.

Keeps true: a router's word on tenant and render time counts only with the fleet's token, and a published token counts
only while no API keys exist; whatever cannot be served is refused before the engine hears of it. Does not know the
engine or how answers are sent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from trieway.meta_tree.chain import Chain, FleetKey
from trieway.meta_tree.ids import Namespace
from trieway.serving import headers as names
from trieway.serving.auth import KeyRing, shows_fleet_token
from trieway.serving.chat_template import ChatTemplate, render_prompt
from trieway.serving.errors import BadRequest, NotFound
from trieway.serving.handshake import ModelCard
from trieway.serving.schema import ChatRequest, CompletionRequest, parse_chat, parse_completion
from trieway.worker.chat import ChatForm
from trieway.worker.completions import CompletionForm
from trieway.worker.jobs import Form, Job
from trieway.worker.logprobs import TokenNames
from trieway.worker.prompts import Prompt, Prompts, too_long


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks. `render_time` is seconds since 1970."""

    tenant: str | None
    render_time: float


class Intake:
    """Reads requests for one model."""

    def __init__(
        self,
        *,
        card: ModelCard,
        template: ChatTemplate | None,
        prompts: Prompts,
        key: FleetKey,
        ring: KeyRing,
        completions_max: int,
    ) -> None:
        self._card = card
        self._template = template
        self._prompts = prompts
        self._key = key
        self._ring = ring
        self._completions_max = completions_max
        token_names = TokenNames(prompts.table)
        self._chat_form = ChatForm(token_names)
        self._completion_form = CompletionForm(token_names)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """
        Raises:
            Unauthorized: keys exist and none is shown.
        """
        vouched = not self._key.published or self._ring.open
        if vouched and shows_fleet_token(headers, self._key.feed_token):
            render_time = names.render_time(headers.get(names.RENDER_TIME))
            return Caller(
                # A router writes it as UTF-8; headers are read as latin-1.
                tenant=headers.get(names.TENANT, "").encode("latin-1").decode(errors="replace") or None,
                render_time=time.time() if render_time is None else render_time,
            )
        return Caller(tenant=self._ring.principal(headers).tenant, render_time=time.time())

    async def chat(self, body: bytes, caller: Caller) -> Job:
        """
        Raises:
            BadRequest, NotFound: the body cannot be served, or names another model.
        """
        request = parse_chat(body)
        prompt = await self.chat_prompt(request, caller)
        return self._job("chatcmpl-", request, (prompt,), self._chat_form, param="messages")

    async def completion(self, body: bytes, caller: Caller) -> Job:
        """
        Raises:
            BadRequest, NotFound: the body cannot be served, or names another model.
        """
        request = parse_completion(body)
        prompts = await self.completion_prompts(request, caller)
        return self._job("cmpl-", request, prompts, self._completion_form, param="prompt", echo=request.echo)

    async def chat_prompt(self, request: ChatRequest, caller: Caller) -> Prompt:
        """The rendered prompt of a chat."""
        self.check_model(request.model)
        if self._template is None:
            raise BadRequest("this model has no chat template; start the worker with --chat-template", param="messages")
        text = render_prompt(request, self._template, caller.render_time)
        return await self._prompts.from_text(text, self._chain(request.cache_salt, caller), param="messages")

    async def completion_prompts(
        self, request: CompletionRequest, caller: Caller, *, prefix: bool = True
    ) -> tuple[Prompt, ...]:
        """The prompts of a completion; without `prefix` the tokenizer's own first token (BOS) is left out."""
        self.check_model(request.model)
        self._check_count(len(request.prompts), request.sampling.n)
        chain = self._chain(request.cache_salt, caller)
        before = self._card.completion_prefix if prefix else ""
        return tuple(
            [
                await self._prompts.from_text(prompt, chain, prefix=before)
                if isinstance(prompt, str)
                else await self._prompts.from_ids(prompt, chain)
                for prompt in request.prompts
            ]
        )

    def _chain(self, salt: str | None, caller: Caller) -> Chain:
        return self._prompts.chain(Namespace(tenant=caller.tenant, salt=salt))

    def check_model(self, model: str | None) -> None:
        """Raises NotFound for another model than this worker's."""
        if model is not None and model != self._card.model and model not in self._card.aliases:
            raise NotFound.model(model)

    def _check_count(self, prompts: int, n: int) -> None:
        if prompts * n > self._completions_max:
            raise BadRequest(
                f"prompts times n is {prompts * n}; at most {self._completions_max} answers in one request",
                param="n" if n > 1 else "prompt",
            )

    def _job(
        self,
        id_prefix: str,
        request: ChatRequest | CompletionRequest,
        prompts: tuple[Prompt, ...],
        form: Form,
        *,
        param: str,
        echo: bool = False,
    ) -> Job:
        sampling = request.sampling
        self._check_count(len(prompts), sampling.n)
        return Job(
            id=id_prefix + uuid.uuid4().hex,
            created=int(time.time()),
            model=self._card.model if request.model is None else request.model,
            prompts=prompts,
            sampling=sampling,
            max_tokens=tuple(self._room(prompt, sampling.max_tokens, param) for prompt in prompts),
            form=form,
            stream=request.stream,
            include_usage=request.include_usage,
            echo=echo,
            priority=request.priority,
        )

    def _room(self, prompt: Prompt, wanted: int | None, param: str) -> int:
        """Tokens that this prompt's answer may have: `wanted`, or all that are left.

        Raises:
            BadRequest: the context does not hold them, code context_length_exceeded.
        """
        context, length = self._card.context_tokens, len(prompt.tokens)
        room = context - length
        if room < (1 if wanted is None else wanted):
            raise too_long(context, length, wanted or 0, param=param)
        return room if wanted is None else wanted
