"""Near-valid values: a valid tree with one to three changes that a person, a program or an enemy would make.

A tree is what JSON, TOML and MessagePack hold. Every draw comes from the `Random` that is passed in.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

Path = tuple[Any, ...]
NUMBERS = (
    *(0, -0.0, 1, -1, 2, 1e-320, 5e-324, 1e-9, 1e-100, 1e99, 1e100, 1.0000001e100, 1e155, 1e300, -1e308, 1.7e308),
    *(math.nan, math.inf, -math.inf, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 0.1 + 0.2),
)
PLAIN_WORDS = "null 0 NaN task_0 libero-10 robot target bystander furniture ../../etc/passwd"
TEXTS = (
    *("", " ", *PLAIN_WORDS.split()),
    *("a\x00b", "\x1b[31mred", "\u202eevil", "\u2028", "ﬀ", "e\u0301", "\U0001f600", "\ud800", "\ufeff", "x" * 3000),
    *("<script>", "=1+1", "%s%n{0}", "'; DROP TABLE", "\\", "\r\n", "\t", "K\u030a", "\u0130", "-", "__class__"),
)


def odd(rng: Random) -> Any:
    """A value that hardly any place is meant to hold."""
    return rng.choice(
        [
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice([None, True, False]),
            lambda: rng.choice([[], {}, [[]], [None], {"": None}, [{}], {"a": {}}]),
            lambda: nested(rng.choice([3, 60, 70, 150, 300]), rng.choice(["list", "dict"])),
            lambda: [rng.choice(NUMBERS) for _ in range(rng.choice([1, 2, 3, 4, 7, 50]))],
        ]
    )()


def nested(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def choose_place(rng: Random, tree: Any) -> Path:
    """A place in the tree: deep ones are many, so that the way down is drawn, not the place."""
    path: Path = ()
    while isinstance(tree, dict | list) and tree and (not path or rng.random() < 0.75):
        key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        path, tree = (*path, key), tree[key]
    return path


def mutate(rng: Random, tree: Any, times: int | None = None) -> Any:
    """The tree with so many changes, one to three by default."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 1, 2, 3]) if times is None else times):
        path = choose_place(rng, tree)
        if not path:
            return odd(rng)
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        rng.choice(CHANGES)(rng, parent, path[-1])
    return tree


def _replace(rng: Random, parent: Any, key: Any) -> None:
    parent[key] = odd(rng)


def _remove(rng: Random, parent: Any, key: Any) -> None:
    del parent[key]


def _twice(rng: Random, parent: Any, key: Any) -> None:
    value = copy.deepcopy(parent[key])
    if isinstance(parent, list):
        parent.insert(key, value)
    else:
        parent[f"{key}{rng.choice(['', '2', ' ', 's'])}"] = value


def _extra(rng: Random, parent: Any, key: Any) -> None:
    if isinstance(parent, list):
        parent.append(odd(rng))
    else:
        parent[rng.choice([*TEXTS, "note", "t", "steps", "episode_id", "force_n", "header", "tags"])] = odd(rng)


def _rename(rng: Random, parent: Any, key: Any) -> None:
    if isinstance(parent, dict):
        value = parent.pop(key)
        text = str(key)
        parent[rng.choice([text.upper(), text[:-1], f"{text} ", text.replace("o", "о"), rng.choice(TEXTS)])] = value


def _unit(rng: Random, parent: Any, key: Any) -> None:
    """Another unit, or another type that means the same."""
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = rng.choice([int(value), str(value), None])
    elif isinstance(value, int | float):
        factor = rng.choice([1000, 0.001, -1, 57.29577951308232, 1e6, 1e90])
        scaled = value * (factor if abs(value) < 1e300 else -1)
        parent[key] = rng.choice([repr(scaled)[:20], [value], scaled, scaled, scaled, scaled])
    elif isinstance(value, str):
        parent[key] = rng.choice(
            [value.upper(), value[:-1], f"{value}\u200b", value.encode().hex(), [value], value * 2]
        )
    else:
        _cut(rng, parent, key)


def _cut(rng: Random, parent: Any, key: Any) -> None:
    value = parent[key]
    if isinstance(value, list) and value:
        parent[key] = value[: rng.randrange(len(value))]
    elif isinstance(value, dict) and value:
        parent[key] = dict(list(value.items())[: rng.randrange(len(value))])
    else:
        _replace(rng, parent, key)


def _wrap(rng: Random, parent: Any, key: Any) -> None:
    parent[key] = rng.choice([[parent[key]], {"value": parent[key]}, {str(key): parent[key]}])


def _swap(rng: Random, parent: Any, key: Any) -> None:
    other = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[key], parent[other] = parent[other], parent[key]


CHANGES: Sequence[Callable[[Random, Any, Any], None]] = (
    *(_replace, _replace, _remove, _remove, _twice, _extra, _rename, _unit, _unit, _cut, _wrap, _swap),
)


def walk(tree: Any) -> Iterator[Any]:
    """Yield every value in the tree, the keys of mappings among them."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, dict):
            waiting.extend(value.values())
            yield from value
        elif isinstance(value, list):
            waiting.extend(value)


def numbers(tree: Any) -> Iterator[int | float]:
    """Yield every number in the tree."""
    return (value for value in walk(tree) if isinstance(value, int | float) and not isinstance(value, bool))


def depth(tree: Any) -> int:
    """Levels of nesting."""
    layer, levels = [tree], 0
    while layer := [value for value in layer if isinstance(value, dict | list)]:
        layer = [child for value in layer for child in (value.values() if isinstance(value, dict) else value)]
        levels += 1
    return levels


def json_text(rng: Random, tree: Any) -> bytes:
    """The tree as JSON; now and then as one that is damaged as texts are."""
    try:
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:
        text = b"[" * 100_000
    return damage(rng, text) if rng.random() < 0.15 else text


def damage(rng: Random, content: bytes) -> bytes:
    """Bytes as a crash, a bad copy or an editor leaves them."""
    if not content:
        return b"\0"
    place = rng.randrange(len(content))
    length = rng.randrange(1, 9)
    return rng.choice(
        [
            lambda: content[:place],
            lambda: content[place:],
            lambda: content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :],
            lambda: content[:place] + content[place + length :],
            lambda: content[:place] + content[place : place + length] * 2 + content[place + length :],
            lambda: content[:place] + bytes(length) + content[place + length :],
            lambda: content[:place] + b"\xff" * length + content[place:],
            lambda: b"\xef\xbb\xbf" + content,
            lambda: content.decode("utf-8", "replace").encode("utf-16"),
            lambda: content + content,
            lambda: rng.choice([b"[", b'{"a":', b'[{"":']) * rng.choice([1000, 100_000]),
            lambda: b"",
        ]
    )()


def toml(tree: Any) -> str:
    """A tree of tables as TOML; what TOML cannot say is left out."""
    lines = [
        f"{_key(key)} = {_value(value)}" for key, value in tree.items() if not _tables(value) and value is not None
    ]
    for key, value in tree.items():
        for row in value if _tables(value) else ():
            lines += [f"[[{_key(key)}]]"]
            lines += [f"{_key(name)} = {_value(inner)}" for name, inner in row.items() if inner is not None]
    return "\n".join(lines) + "\n"


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _key(key: Any) -> str:
    return _value(str(key))


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case int() | str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(_value(item) for item in value if item is not None) + "]"
        case dict():
            pairs = (f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
            return "{" + ", ".join(pairs) + "}"
    return '""'
