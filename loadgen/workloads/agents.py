"""Agents: ReAct (thought, action, observation, again) and generative agents (people of a small town who plan and talk).

A ReAct task is one growing conversation after a long instruction that all tasks share. A generative agent makes many
calls of a few kinds: the kind's template is shared by all agents, its person's description by the agent's own calls.
"""

from dataclasses import dataclass

from trieway.loadgen.vocabulary import AnswerOf, Call, Message, Part, Text
from trieway.loadgen.workloads.common import Draft, Pause, choice, number


@dataclass(frozen=True, kw_only=True, slots=True)
class ReactAgent:
    """Tasks solved in steps, each with the answer of a tool."""

    tasks: int = number(40, "tasks")
    steps: int = number(5, "calls for each task")
    instruction_tokens: int = number(700, "instruction, tools and worked examples that all tasks share")
    task_tokens: int = number(50, "length of a task")
    output_tokens: int = number(60, "length of a thought with its action")
    observation_tokens: int = number(120, "length of what a tool answers")
    tool_time: str = choice("exponential:0.5", "how long a tool takes")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerativeAgents:
    """Calls of a few kinds by agents with a description each."""

    agents: int = number(25, "agents")
    steps: int = number(8, "calls of each agent, one after the other")
    kinds: int = number(4, "templates that all agents share (plan, react, converse, reflect)")
    template_tokens: int = number(260, "length of a template")
    person_tokens: int = number(200, "length of an agent's description")
    memory_tokens: int = number(80, "length of what is recalled for one call")
    output_tokens: int = number(40, "length of an answer")
    pause: str = choice("exponential:0.5", "time between an agent's calls")


def react_agent(settings: ReactAgent, draft: Draft) -> None:
    """A session is a task."""
    pause = Pause.parse(settings.tool_time)
    system = Message("system", (draft.words(settings.instruction_tokens),))
    for task in range(settings.tasks):
        session = f"task-{task}"
        messages = [system, Message("user", (Text("Task:"), draft.some_words(settings.task_tokens)))]
        calls: list[Call] = []
        for step in range(settings.steps):
            if calls:
                observed = (Text("Observation:"), draft.some_words(settings.observation_tokens))
                messages += [Message("assistant", (AnswerOf(calls[-1].id),)), Message("user", observed)]
            calls.append(
                Call(
                    id=f"{session}.{step}",
                    session=session,
                    messages=tuple(messages),
                    output_tokens=settings.output_tokens,
                    max_tokens=settings.output_tokens,
                    after=(calls[-1].id,) if calls else (),
                    think_s=pause.draw(draft.rng) if calls else 0.0,
                    share_group="react",
                )
            )
        draft.sessions.append(calls)
    draft.shuffle()


def generative_agents(settings: GenerativeAgents, draft: Draft) -> None:
    """A session is an agent."""
    pause = Pause.parse(settings.pause)
    templates = [draft.words(settings.template_tokens) for _ in range(settings.kinds)]
    for agent in range(settings.agents):
        session = f"agent-{agent}"
        person = (Text("\nPerson:"), draft.some_words(settings.person_tokens))
        calls: list[Call] = []
        for step in range(settings.steps):
            kind = draft.rng.randrange(settings.kinds)
            recalled: tuple[Part, ...] = (Text("\nMemory:"), draft.some_words(settings.memory_tokens))
            if calls:
                recalled += (Text("\nBefore:"), AnswerOf(calls[-1].id))
            calls.append(
                Call(
                    id=f"{session}.{step}",
                    session=session,
                    form="completion",
                    prompt=(templates[kind], *person, *recalled, Text("\nNow:")),
                    output_tokens=settings.output_tokens,
                    max_tokens=settings.output_tokens,
                    after=(calls[-1].id,) if calls else (),
                    think_s=pause.draw(draft.rng) if calls else 0.0,
                    share_group=f"kind-{kind}",
                )
            )
        draft.sessions.append(calls)
    draft.shuffle()
