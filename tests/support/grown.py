"""Generate random functions from all statements of Python, and regions over some of the statements.

`grow()` makes a module by a source of chance. Its function `target` is a plain function, a coroutine, a
generator or an async generator, at the top level, in another function, or in a class. Each call of `m0`,
`m1` ... notes its line and its value, so that moved lines and lost evaluations are found.
"""

import sys
from dataclasses import dataclass
from random import Random
from typing import Any

NAMES = ("a", "b", "c", "x", "y")
EXECUTED = ("z", "a")
PRELUDE = """
import builtins, inspect, sys
from builtins import vars as show

noted, left = [], [0]
shared = 5


def short(value):
    if isinstance(value, (int, str, float, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [short(one) for one in value]
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items() if one is not value and name != "saved"}
    return type(value).__name__


def note(value):
    noted.append((sys._getframe(1).f_lineno, short(value)))
    return value


def mark(value=None, **named):
    if left[0] <= 0:
        raise OverflowError("enough")
    left[0] -= 1
    noted.append((sys._getframe(1).f_lineno, short(value)))
    return named.get("value", value)


globals().update({f"m{number}": mark for number in range(400)})


def tick():
    left[0] -= 7
    return left[0] > 0


def callers_locals():
    return sys._getframe(1).f_locals


class Noisy:
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 3

    def __repr__(self):
        return f"Noisy({self.name!r})"

    def __del__(self):
        noted.append(("gone", self.name))


class Around:
    def __init__(self, mutes=False):
        self.mutes = mutes

    def __enter__(self):
        noted.append("entered")
        return 7

    def __exit__(self, kind, *rest):
        noted.append(("exited", kind and kind.__name__))
        return self.mutes and kind is not None and issubclass(kind, Exception)


class AroundAsync(Around):
    async def __aenter__(self):
        noted.append(await Pause("entering"))
        return 7

    async def __aexit__(self, *exception):
        await Pause("exiting")
        return self.__exit__(*exception)


class Pause:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        return 3 if got is None else got


class Steps:
    def __init__(self, count):
        self.count = count

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.count <= 0:
            raise StopAsyncIteration
        self.count -= 1
        return await Pause(self.count)


class Base:
    def up(self, value):
        return mark(value)
"""


@dataclass(frozen=True)
class Program:
    """A module with a function `target(x, y)`, regions for it, and the steps of its caller."""

    source: str
    kind: str
    regions: tuple[dict[str, Any], ...]
    drive: tuple[tuple[Any, ...], ...]

    def __repr__(self) -> str:
        return f"{self.kind}, {self.regions}, {self.drive}\n{self.source[len(PRELUDE) :]}"


def grow(chance: Random) -> Program:
    """Make a program; chance of the same seed makes the same one."""
    return _Grower(chance).program()


class _Grower:
    def __init__(self, chance):
        self.chance = chance
        self.lines, self.depth, self.budget, self.marks = [], 0, 25, 0
        self.is_async = self.is_generator = self.around = False
        self.loops = self.nested = 0
        self.named = []  # the marks that are called with a keyword, which a region can capture

    def choice(self, *choices):
        return choices[self.below(len(choices))]

    def below(self, count):
        return self.chance.randrange(count)

    def put(self, line):
        self.lines.append("    " * self.depth + line)

    def program(self):
        kind = self.choice("function", "coroutine", "generator", "async generator")
        self.is_async, self.is_generator = "async" in kind or kind == "coroutine", "generator" in kind
        shape = self.choice("plain", "closure", "method")
        self.around = shape == "closure"
        start = "async def" if self.is_async else "def"
        if shape == "plain":
            self.function(f"{start} target(x, y=2):")
        elif shape == "closure":
            self.put("def make(p):")
            self.depth += 1
            self.put("q = [p]")
            self.function(f"{start} target(x, y=2):")
            self.put("return target")
            self.depth -= 1
            self.put("target = make(4)")
        else:
            self.put("class Own(Base):")
            self.depth += 1
            self.put("__secret = 6")
            self.function(f"{start} target(self, x, y=2):", is_method=True)
            self.depth -= 1
            self.put("target = Own().target")
        regions = tuple(self.region() for _ in range(1 + self.below(3)))
        return Program(f"{PRELUDE}\n\n" + "\n".join(self.lines) + "\n", kind, regions, self.drive())

    def function(self, head, is_method=False):
        self.put(head)
        self.depth += 1
        if self.below(3) == 0:
            self.put('"""Says what it does."""')
        if self.around and self.below(2):
            self.put("nonlocal p")
        if self.below(4) == 0:
            self.put("global shared")
        if is_method and self.below(2):
            self.put(f"a = super().up({self.expression()}) + self.__secret")
        if self.is_generator:
            self.put(f"b = yield {self.expression()}")
        if self.below(5):
            self.put("a, b, c = x, 2, [y]" if self.below(3) == 0 else "a, b, c = x, 2, y")
        for _ in range(2 + self.below(6)):
            self.statement()
        if self.is_async:
            self.put(f"note(await Pause({self.mark()}))")
        if self.below(2):
            self.put(f"return {self.expression()}" if self.may_return_value else "return")
        self.depth -= 1

    @property
    def may_return_value(self):
        return not (self.is_async and self.is_generator)

    # ---- expressions
    def mark(self, depth=0):
        number = self.marks = self.marks + 1  # each name is called at one place, which a region can name
        value = self.expression(depth + 1) if depth < 3 else "x"
        if self.below(5):
            return f"m{number}({value})"
        self.named.append(f"m{number}")
        return f"m{number}(value={value})"

    def name(self):
        return self.choice(*NAMES, "x", "y", *(("p", "q[0]") if self.around else ()), "shared")

    def expression(self, depth=0):
        kinds = ["constant", "name", "name", "mark"]
        if depth < 3:
            kinds += [
                "sum",
                "sum",
                "divided",
                "walrus",
                "comprehension",
                "lambda",
                "either",
                "text",
                "many",
                "generated",
            ]
            kinds += ["await", "awaited"] * self.is_async + ["yield"] * self.is_generator
        kind = self.choice(*kinds)
        first = other = ""
        if kind in ("sum", "divided", "walrus", "lambda", "either", "text", "many", "await", "yield"):
            first = self.expression(depth + 1)
        if kind in ("sum", "divided", "either", "many"):
            other = self.expression(depth + 1)
        return {
            "constant": str(self.below(4)),
            "name": self.name() if kind == "name" else "",
            "mark": self.mark(depth) if kind == "mark" else "",
            "sum": f"({first} + {other})",
            "divided": f"({first} // ({other} or 1))" if self.below(4) else f"({first} // {other})",
            "walrus": f"({self.choice(*NAMES)} := {first})",
            "comprehension": f"[k + {self.choice('k', 'x', 'shared')} for k in range(3) if k][-1]",
            "generated": f"sum(k * {self.choice('k', 'y', 'shared')} for k in range(3))",
            "lambda": f"(lambda k: k + 1)({first})",
            "either": f"({first} if {other} else 1)",
            "text": f"len(f'{{{first}!r:>4}}')",
            "many": f"max(*[{first}, {other}])",
            "await": f"(await Pause({first}))",
            "awaited": "len([k async for k in Steps(2)])",
            "yield": f"(yield {first})",
        }[kind]

    def condition(self):
        left = self.choice("x", "y", "left[0] % 5", self.expression(1))
        return f"{left} {self.choice('>', '==', '<', '!=')} {self.below(4)}"

    # ---- statements
    def block(self, *before):
        self.depth += 1
        for line in before:
            self.put(line)
        for _ in range(1 + self.below(3)):
            self.statement()
        self.depth -= 1

    def statement(self):
        self.budget -= 1
        simple = [
            *("assign", "assign", "call", "call", "add", "unpack", "annotate", "delete", "noisy"),
            *("assert", "raise", "import", "pass", "leave", "locals", "locals", "yield", "exec"),
        ]
        compound = [
            "if",
            "for",
            "while",
            "try",
            "try",
            "with",
            "match",
            "def",
            "class",
            "async for",
            "async with",
        ]
        kind = self.choice(*simple, *(compound if self.budget > 0 and self.depth < 6 else ()))
        getattr(self, f"put_{kind.replace(' ', '_')}")()

    def put_assign(self):
        self.put(f"{self.choice(*NAMES)} = {self.expression()}")

    def put_call(self):
        self.put(self.mark())

    def put_add(self):
        self.put(f"{self.choice(*NAMES, *(('p', 'q[0]') if self.around else ()))} += {self.mark()}")

    def put_unpack(self):
        self.put(f"a, *c = {self.expression()}, {self.mark()}, 2")
        self.put("c = len(c)")

    def put_annotate(self):
        self.put(f"{self.choice(*NAMES[:3])}: int = {self.expression()}")

    def put_delete(self):
        name = self.choice(*NAMES[:3])
        self.put(f"del {name}")
        if self.below(3):
            self.put(f"{name} = 1")

    def put_noisy(self):
        self.put(
            self.choice(
                "a = Noisy('a')", "b = Noisy('b')", "c = [Noisy('c')]", "a = b = 0", "note(len(Noisy('d')))"
            )
        )

    def put_assert(self):
        self.put(f"assert {self.condition()} or {self.expression()}, 'no'")

    def put_raise(self):
        error = self.choice("ValueError('v')", "KeyError(1)", "ValueError('f') from KeyError('c')", "")
        self.put(f"if {self.condition()}: raise {error}".rstrip())

    def put_import(self):
        self.put("import math as c; c = c.floor(2.5)")

    def put_pass(self):
        self.put("pass")

    def put_yield(self):
        if self.is_generator:
            self.put(
                self.choice(
                    f"yield {self.expression()}", "yield", f"{self.choice(*NAMES)} = yield {self.mark()}"
                )
            )
        elif self.is_async:
            self.put(f"await Pause({self.mark()})")
        else:
            self.put_call()

    def put_leave(self):
        value = f" {self.expression()}" if self.may_return_value and self.below(4) else ""
        ways = [f"return{value}", *(["break", "continue"] * 2 if self.loops else [])]
        self.put(f"if {self.condition()}: {self.choice(*ways)}")

    def put_locals(self):
        if self.nested or self.below(3):
            self.put_call()
            return
        self.put(
            self.choice(
                "saved = vars()",
                "saved = locals()",
                "saved = show()",
                "saved = builtins.locals()",
                "saved = inspect.currentframe().f_locals",
                "saved = sys._getframe().f_locals",
                "note(sorted(dir()))",
                "note(vars())",
                "note(saved)",
                "note(callers_locals().get('a'))",
            )
        )

    def put_exec(self):
        if self.nested or self.below(3):
            self.put_assign()
        else:
            name = self.choice(*EXECUTED)
            self.put(self.choice(f"exec('{name} = x + 1')", f"note(eval('{name}'))", "note(eval('x + y'))"))

    def put_if(self):
        self.put(f"if {self.condition()}:")
        self.block()
        for head in self.choice((), ("else:",), (f"elif {self.condition()}:", "else:")):
            self.put(head)
            self.block()

    def looped(self, head):
        self.put(head)
        self.loops += 1
        self.block()
        self.loops -= 1
        if self.below(4) == 0:
            self.put("else:")
            self.block()

    def put_for(self):
        self.looped(f"for {self.choice(*NAMES)} in range({1 + self.below(3)}):")

    def put_while(self):
        self.looped(f"while tick() and {self.condition()}:" if self.below(2) else "while tick():")

    def put_async_for(self):
        self.looped(
            f"async for {self.choice(*NAMES)} in Steps({1 + self.below(3)}):"
            if self.is_async
            else "while tick():"
        )

    def put_async_with(self):
        self.put_with("async with" if self.is_async else "with")

    def put_with(self, word="with"):
        name = "AroundAsync" if word != "with" else "Around"
        more = self.choice("", f" as {self.choice(*NAMES)}", f", {name}()")
        self.put(f"{word} {name}({self.choice('', 'True')}){more}:")
        self.block()

    def put_try(self):
        self.put("try:")
        self.block()
        star = "*" if sys.version_info >= (3, 11) and self.below(6) == 0 else ""
        heads = self.choice(
            ("except ValueError as c:",),
            ("except (KeyError, NameError):", "except Exception:"),
            ("finally:",),
            ("except Exception as c:", "finally:"),
            ("except Exception:", "else:", "finally:"),
        )
        loops = self.loops
        for head in heads:
            self.put(head.replace("except ", f"except{star} "))
            if star and head.startswith("except"):  # without return, break or continue
                self.depth += 1
                self.put("note(1)")
                self.depth -= 1
                continue
            self.loops = 0 if head == "finally:" and self.below(2) else loops
            self.block("raise" if head.startswith("except") and self.below(6) == 0 else "note(2)")
        self.loops = loops

    def put_match(self):
        subject = self.choice("(x, y)", "a", "{'k': x}", "x")
        self.put(f"match {subject}:")
        self.depth += 1
        for pattern in ("case 1 | 2:", "case [b, *_] if b:", 'case {"k": c}:', "case int() as a:", "case _:"):
            self.put(pattern)
            self.block()
        self.depth -= 1

    def put_def(self):
        name = self.choice("a", "b")
        self.put(f"def {name}(k, held=[x]):" if self.below(2) else f"def {name}(k=1, held=()):")
        outer = self.is_async, self.is_generator, self.loops
        self.is_async = self.is_generator = False
        self.loops, self.nested = 0, self.nested + 1
        self.block(self.choice("nonlocal c" if self.nested == 1 else "pass", "pass", "k = y"), "c = k")
        self.is_async, self.is_generator, self.loops = outer
        self.nested -= 1
        self.put("c = 1" if self.below(2) else "pass")
        self.put(f"{self.choice('c', 'y')} = {name}({self.expression()})")

    def put_class(self):
        self.put("class a:")
        self.depth += 1
        self.put(f"b = {self.choice('x', 'y', '1')}")
        self.put("c = b")
        self.depth -= 1
        self.put("a = a.c")

    # ---- regions
    def region(self):
        number = self.below(1000)
        marks = [f"m{mark + 1}" for mark in sorted(self.below(max(self.marks, 1)) for _ in range(2))]
        region = dict(
            self.choice(
                {},
                {"at": marks[0]},
                {"block": marks[0]},
                {"from": marks[0]},
                {"before": marks[0]},
                {"from": marks[0], "through": marks[1]},
                {"after": marks[0], "before": marks[1]},
                {"call": marks[0]} if self.is_async else {"at": marks[1]},
                {"entering": "AroundAsync"} if self.is_async else {"entering": "Around"},
            )
        )
        is_expression = "call" in region or "entering" in region
        region["event"] = f"event_{number}"
        if self.is_generator and not is_expression and self.below(6):
            region["generator"] = True
            if self.below(3) == 0:
                region["ends"] = self.choice("item", "a", "b", "x")
        elif not is_expression and self.below(4) == 0:
            region["emit"] = self.choice("enter", "exit")
        if self.below(2):
            region["enter"] = {"first": self.name_read(), "second": f"size({self.name_read()})"}
        if self.below(3):
            region["exit"] = {"first": self.name_read(), "third": f"size({self.name_read()})"}
            if self.below(2) and region.get("emit") != "enter":
                region["exit"]["result"] = "result"
        if region.get("emit") == "enter":
            region.pop("exit", None)
        if not (region.get("emit") or is_expression) and self.below(3) == 0:
            region["always"] = {"fourth": self.name_read()}
        if not (region.get("generator") or region.get("emit") or is_expression):
            if self.below(3) == 0:
                region["bind"] = {"turn": "x", "request_id": self.name_read()}
            if self.below(4) == 0:
                region["root"] = True
            if self.below(3) == 0:
                region["capture"] = {"given": f"{self.choice(*self.named, marks[0])}(value)"}
        if self.below(12) == 0:
            region["when"] = self.name_read()
        return region

    def name_read(self):
        return self.choice(*NAMES, "c", "x", "p", "saved", "gone")

    # ---- the steps of the caller
    def drive(self):
        steps = [
            *[("next",)] * 5,
            ("send", 5),
            ("throw", "ValueError"),
            ("throw", "StopIteration"),
            ("close",),
        ]
        return (("next",), *(self.choice(*steps) for _ in range(self.below(9))))
