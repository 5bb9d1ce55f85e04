"""Names of operators as users write them: MatMul, or domain:MatMul."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.entries import Operator
from amp_rewrite.policy.yaml_fields import nearest


def split(text: str) -> Operator | None:
    """The domain, in ONNX's own spelling, and the name; None for what is no name of an operator."""
    domain, colon, name = text.rpartition(":")
    if not name or any(map(str.isspace, text)) or (colon and not domain):
        return None
    return schema.canonical(domain), name


def near(key: Operator | None, known: Callable[[str], Iterable[str]]) -> str:
    """What an operator that does not exist may have meant, as advice; `known` are those of a domain."""
    if key is None:
        return "write it as MatMul, or as domain:MatMul"
    domain, name = key
    if elsewhere := [d for d in ("", "com.microsoft") if name in known(d)]:
        return f"did you mean {schema.written(elsewhere[0], name)}?"
    meant = nearest(name, known(domain))
    return f"did you mean {schema.written(domain, meant)}?" if meant else "operators are case-sensitive"
