"""Operator lists: YAML -> OpLists. Errors in a file name its line.

    name: mine
    half: float16                       # the half type that it is for; by default that of the base
    extends: default                    # a shipped list, or a path relative to this file
    alone: false                        # nothing else decides, as for the lists of another's pass
    allow:
      MatMul: why it is fast and safe   # the default domain is left out, any other is written
      com.example:Product: why it is fast and safe
    infer:
      Add: {reason: why it is safe, follow: true}
    clear: ...
    deny: ...
    fixed: ...
    types:
      com.example:Product: float16      # the types of a custom operator (operators.declared_types)

No operator may be on two lists of a file. One that is named here leaves its list in the base.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.errors import ListError, OptionError
from amp_rewrite.numerics import half as halves
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators import declared_types
from amp_rewrite.policy import entries
from amp_rewrite.policy.entries import Entry, Kind, Operator
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.yaml_fields import Document, read
from amp_rewrite.text import nearest, suggestion

# The operator lists that come with the package: their names, and the folder that holds them.


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of the shipped lists, in order."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


@functools.cache
def folder() -> Path:
    """Return the folder of the shipped lists: in an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "oplists"
    return inside if inside.is_dir() else package.parent / "oplists"


@functools.cache
def holds(file: Path) -> bool:
    """Return whether a file is one of the shipped lists."""
    return file.resolve().parent == folder().resolve()


# Names of operators as users write them: MatMul, or domain:MatMul.


def split(text: str) -> Operator | None:
    """Return the domain, in ONNX's own spelling, and the name; None for an invalid operator name."""
    domain, colon, name = text.rpartition(":")
    if not name or any(map(str.isspace, text)) or (colon and not domain):
        return None
    return schema.canonical(domain), name


@dataclass(frozen=True, slots=True, repr=False)
class OpLists:
    """One entry per listed operator.

    `half` names the half type that they are for; empty where they name none. `files` are those that they
    were read from. `moved` holds the entries that overrides have replaced, None for
    an operator that was on no list. `op_types` are the declared types of custom operators (Options).
    Lists that decide `alone` reproduce another's pass: no analysis of numbers adds to them.

    Examples:
        >>> from amp_rewrite import Options, load_lists, rewrite
        >>> from amp_rewrite.demo import network
        >>> lists = load_lists("default").override("deny", "Conv")
        >>> rewrite(network(), Options(lists=lists)).report.nodes.full
        21
    """

    name: str
    description: str
    entries: Mapping[Operator, Entry]
    files: tuple[Path, ...] = ()
    moved: Mapping[Operator, Entry | None] = dataclasses.field(default_factory=dict[Operator, "Entry | None"])
    half: str = ""
    op_types: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    alone: bool = False

    def __repr__(self) -> str:
        """Return a line: the name, how many operators are listed, and how many of them were moved."""
        return f"OpLists({self.name}: {len(self.entries)} operators, {len(self.moved)} moved)"

    def __reduce__(self) -> tuple[type[OpLists], tuple[Any, ...]]:
        entries, overrides = dict(self.entries), dict(self.moved)  # the views of them cannot be pickled
        types = dict(self.op_types)
        return OpLists, (
            self.name,
            self.description,
            entries,
            self.files,
            overrides,
            self.half,
            types,
            self.alone,
        )

    def find(self, domain: str, op_type: str) -> Entry | None:
        """Return the entry of an operator; None when it is on no list.

        Examples:
            >>> from amp_rewrite import load_lists
            >>> load_lists("default").find("", "Softmax").kind.value
            'infer'
        """
        return self.entries.get((schema.canonical(domain), op_type))

    def override(self, kind: Kind | str, operators: arguments.Texts) -> OpLists:
        """Return these lists with the operators, one or several, moved to `kind`, as --deny and --allow do.

        Raises ListError for an operator that does not exist, and OptionError for a kind that does not.

        Examples:
            >>> from amp_rewrite import load_lists
            >>> lists = load_lists("default").override("deny", ["Conv", "com.microsoft:FusedMatMul"])
            >>> lists.find("", "Conv").kind.value
            'deny'
        """
        kind = arguments.choice("kind", kind, Kind)
        operators = arguments.texts("operators", operators)
        try:
            keys = [*map(_existing, operators)]
        except OptionError as error:
            where = f"`OpLists.override({kind.value})`"
            raise ListError(error.problem, file=where, remedy=error.remedy) from error
        overrides = {key: Entry(kind, _ASKED, self._follows(key, kind)) for key in keys}
        before = {key: self.entries.get(key) for key in overrides} | dict(self.moved)
        return replace(
            self,
            entries=MappingProxyType({**self.entries, **overrides}),
            moved=MappingProxyType(before),
        )

    def declaring(self, op_types: Mapping[str, str]) -> OpLists:
        """Return these lists with types of custom operators, which are allowed unless they are on a list.

        Examples:
            >>> from amp_rewrite import load_lists
            >>> load_lists("default").declaring({"autoware:Op": "float16"}).find("autoware", "Op").kind.value
            'allow'
        """
        declared = {**self.op_types, **op_types}
        evidence = Evidence(Authority.LIST, Reason.LISTED, subject=self.name, text=_DECLARED)
        allowed = dict.fromkeys(declared_types.by_operator(declared), Entry(Kind.ALLOW, evidence))
        entries = MappingProxyType({**allowed, **self.entries})
        return replace(self, entries=entries, op_types=MappingProxyType(declared)) if declared else self

    @property
    def stands_alone(self) -> bool:
        """Return whether this is a file of a user's that extends no other list."""
        return len(self.files) == 1 and not holds(self.files[0])

    def moved_to(self, operator: str) -> Kind | None:
        """Return the list to which an operator was moved; None where it was not, or does not exist.

        Examples:
            >>> from amp_rewrite import load_lists
            >>> load_lists("default").override("deny", "Conv").moved_to("Conv").value
            'deny'
        """
        key = split(operator)
        return self.entries[key].kind if key is not None and key in self.moved else None

    def put_back(self, operators: Iterable[str]) -> OpLists:
        """Return these lists without the overrides of these operators.

        Examples:
            >>> from amp_rewrite import load_lists
            >>> load_lists("default").override("deny", "Conv").put_back(["Conv"]).find("", "Conv").kind.value
            'allow'
        """
        keys = set(map(split, operators))
        before = {key: entry for key, entry in self.moved.items() if key in keys and entry is not None}
        others = {key: entry for key, entry in self.entries.items() if key not in keys & self.moved.keys()}
        overrides = {key: entry for key, entry in self.moved.items() if key not in keys}
        entries = MappingProxyType({**others, **before})
        return replace(self, entries=entries, moved=MappingProxyType(overrides))

    def _follows(self, key: Operator, kind: Kind) -> bool:
        before = self.entries.get(key)
        return kind is Kind.INFER and before is not None and before.follow


_ASKED = Evidence(Authority.OVERRIDE, Reason.ASKED)
_DECLARED = "its types are declared, and the list does not say otherwise"


def load(name_or_path: str | Path) -> OpLists:
    """Return a shipped list by its name, or the list in a file, for `Options.lists`.

    Raises ListError with file and line for errors in the file, or in one it extends.

    Examples:
        >>> from amp_rewrite import Options, load_lists
        >>> lists = load_lists("bfloat16").override("deny", "Softmax").override("allow", "Exp")
        >>> Options(half="bfloat16", lists=lists).operator_lists().name
        'bfloat16'
    """
    if name_or_path in names():
        return _load_shipped(folder() / f"{name_or_path}.yaml")
    path = arguments.path("name_or_path", name_or_path)
    if not path.exists():
        raise ListError("there is no such list", file=path, remedy=_near_lists(str(path)))
    return _load_file(path, trail=())


@functools.cache
def _load_shipped(path: Path) -> OpLists:
    return _load_file(path, trail=())


# ---- one file


_TOP_KEYS = ("name", "description", "half", "extends", "alone", *(kind.value for kind in Kind), "types")


def _load_file(path: Path, trail: tuple[Path, ...]) -> OpLists:
    document = read(path, _TOP_KEYS, trusted=holds(path))
    top = document.content
    name = document.text("name") if "name" in top else path.stem
    base = _base(document, (*trail, path.resolve())) if "extends" in top else _NOTHING
    return OpLists(
        name=name,
        description=document.text("description") if "description" in top else "",
        entries=MappingProxyType({**base.entries, **entries.read(document, name, _operator)}),
        files=(path, *base.files),
        half=_half(document) if "half" in top else base.half,
        op_types={**base.op_types, **dict(_types(document) if "types" in top else ())},
        alone=document.truth(top["alone"], "alone") if "alone" in top else base.alone,
    )


def _types(document: Document) -> Iterator[tuple[str, str]]:
    types = document.content["types"]
    if not isinstance(types, dict):
        remedy = "write each operator as domain:Operator: float16"
        raise document.error("the types are not a mapping", "types", remedy=remedy)
    for operator, declared in types.items():
        try:
            yield _declaration(operator, declared)
        except OptionError as error:
            raise document.error(error.problem, "types", operator) from error


def declarations(name: str, value: object) -> Mapping[str, str]:
    """Return the types declared for custom operators by an argument; none for None. Raises OptionError."""
    example = '{"autoware:Op": "float16,IN1:float32"}'
    declared = arguments.mapping(name, {} if value is None else value, example)
    return dict(_declaration(*item) for item in declared.items())


def _declaration(operator: str, types: Any) -> tuple[str, str]:
    key, where = split(operator), f"`Options.op_types` {operator}={types}"
    if key is None:
        raise OptionError("is for no operator: write it as domain:Operator", where=where)
    if schema.is_known(*key):
        raise OptionError(f"{operator} has a schema, and only custom operators have none", where=where)
    try:
        declared_types.by_operator({operator: types})
    except ValueError as error:
        raise OptionError(str(error)) from error
    return schema.written(*key), str(types)


def _half(document: Document) -> str:
    name = document.text("half")
    if name not in halves.BY_NAME:
        raise document.error(f"{name} is not a half type", "half", remedy=suggestion(name, halves.BY_NAME))
    return name


_NOTHING = OpLists("", "", MappingProxyType({}))


# ---- inheritance


def _base(document: Document, trail: tuple[Path, ...]) -> OpLists:
    name = document.text("extends")
    path = folder() / f"{name}.yaml" if name in names() else document.file.parent / name
    if not path.exists():
        raise document.error(f"there is no list {name} to extend", "extends", remedy=_near_lists(name))
    if path.resolve() in trail:
        circle = " -> ".join(p.name for p in (*trail, path))
        raise document.error(f"the list extends itself: {circle}", "extends")
    return _load_file(path, trail)


def _near_lists(name: str) -> str:
    return f"{suggestion(name, names())}; anything else is the path of a file"


# ---- names of operators


def _operator(file: Path, name: str) -> Operator:
    key = split(name)
    # A shipped list may name operators that the installed onnx is too old for; a test reads those.
    return key if key and holds(file) else _existing(name)


def _existing(text: str) -> Operator:
    """Return an operator of that name; OptionError for one that does not exist."""
    key = split(text)
    known = _operators_of(key[0]) if key else frozenset[str]()
    if key and (key[1] in known or not known):
        return key
    raise OptionError(f"there is no operator {text}", remedy=near_operator(key, _operators_of))


def near_operator(key: Operator | None, operators_of: Callable[[str], Iterable[str]]) -> str:
    """Return the likely meaning of an operator that does not exist, as advice; `operators_of` a domain are
    those that do.
    """
    if key is None:
        return "write it as MatMul, or as domain:MatMul"
    domain, name = key
    elsewhere = [other for other in ("", "com.microsoft") if name in operators_of(other)]
    near = name if elsewhere else nearest(name, operators_of(domain))
    written = near and schema.written(elsewhere[0] if elsewhere else domain, near)
    return f"did you mean {written}?" if written else "operators are case-sensitive"


@functools.cache
def _operators_of(domain: str) -> frozenset[str]:
    """Return the known operator names of a domain; empty for a custom domain."""
    default_names = (name for where, name in load("default").entries if where == domain)
    return schema.known_operators(domain).union(default_names)
