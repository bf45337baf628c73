"""The Jinja environment for chat templates: sandboxed, immutable, and bounded by meter.py.

Keeps true: what a template can reach is listed here (filters, methods, globals), not what it cannot; each operation
that could grow or loop goes through the meter. The source is parsed, its tree is rewritten so that loops, macros,
sums, concatenations, containers and output call the internal filters whose names begin with `%` (no template can name
those), and then compiled. Does not know messages.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, cast

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from trieway.serving import bounded_ops
from trieway.serving.bounded_filters import FILTERS, INTERNAL, TESTS
from trieway.serving.meter import Meter, weigh

_STR = frozenset(
    {"capitalize", "casefold", "lower", "swapcase", "title", "upper"}
    | {"count", "endswith", "find", "index", "rfind", "rindex", "startswith"}
    | {"format", "join", "lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"}
    | {"partition", "rpartition", "rsplit", "split", "splitlines"}
    | {name for name in dir(str) if name.startswith("is")}
)
_METHODS: dict[type, frozenset[str]] = {
    str: _STR,
    Markup: _STR,
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    **dict.fromkeys((int, float, bool, type(None), range, types.GeneratorType), frozenset()),
}
_DICT_ATTRIBUTES = frozenset(dir(dict))
_GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """`meter` is the running rendering's; whoever renders sets it before and holds the lock."""

    intercepted_binops = frozenset(bounded_ops.BINOPS)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
        self.meter = Meter(0)
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.filters = {**FILTERS, **INTERNAL}
        self.tests = {**self.tests, **TESTS}

    def bounded_tree(self, source: str) -> nodes.Template:
        """The rewritten tree of `source`. Raises jinja2.TemplateSyntaxError."""
        tree = self.parse(source)
        rewritten = Rewriter().visit(tree)
        rewritten.set_environment(self)
        return rewritten  # type: ignore[no-any-return]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = _METHODS.get(type(obj))
        return attr in allowed if allowed is not None else super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        # The usual `message.role`: Jinja would try the attribute, catch, then try the item.
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None
        pattern = value.__self__
        bounded_ops.check_format(pattern)

        def bounded(*args: Any, **kwargs: Any) -> str:
            return bounded_ops.formatted(self.meter, formatted, pattern.count("{"), args, kwargs)

        return bounded

    def call(
        __self, __context: Context, __obj: Any, *args: Any, **kwargs: Any
    ) -> Any:  # keyword arguments may have any name
        __self.meter.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = bounded_ops.before_text_method(__self.meter, owner, __obj.__name__, args)
        result = super().call(__context, __obj, *args, **kwargs)
        if __obj is dict:
            weigh(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return bounded_ops.BINOPS[operator](self.meter, left, right)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant said, for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rewriter(NodeTransformer):
    """Routes growth, loops and output through the internal filters."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self._count_body(node)
        if node.test is not None:
            node.test = _through("%tick", node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self._count_body(node)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self._count_body(node)
        return node

    def _count_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        """Each round of the body counts as a tick and as all the literal text in it."""
        literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_through("%round", nodes.Const(literal))]))

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [
            child if isinstance(child, nodes.TemplateData | nodes.Const) else _through("%text", child)
            for child in node.nodes
        ]
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:
        return _through("%add", *(self.visit(part) for part in _summands(node)))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        return _through("%concat", *(self.visit(part) for part in node.nodes))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        if not isinstance(node.expr, nodes.Const):
            node.expr = _through("%compare", node.expr)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._container(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return node if node.ctx != "load" else self._container(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._container(node)

    def _container(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return _through("%container", node)


def _summands(node: nodes.Expr) -> Iterator[nodes.Expr]:
    """a + b + c, read from the left, as one run."""
    run = []
    while isinstance(node, nodes.Add):
        run.append(node.right)
        node = node.left
    run.append(node)
    return reversed(run)


def _through(name: str, first: nodes.Node, *rest: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, first), name, list(rest), [], None, None, lineno=first.lineno)
