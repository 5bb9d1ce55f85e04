"""The two implementations: the operator lists as they are, or every layer in half."""

from __future__ import annotations

import enum
from dataclasses import replace
from types import MappingProxyType

from amp_rewrite.policy.entries import Entry, Kind
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import OpLists
from amp_rewrite.policy.options import CASTING, Options


class Implementation(enum.Enum):
    """How a step becomes half, with the names of the official ResNet's `--fp16_implementation`.

    GRAPH_REWRITE: by the operator lists, the rules and predicted times, as Grappler does it. CASTING: every
    layer in half, as layers of a half `dtype` are, but for what the list denies.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import Implementation, rewrite_train_step
        >>> rewrite_train_step(train_step(), implementation=Implementation.CASTING).report.nodes.half
        11
    """

    GRAPH_REWRITE = "graph_rewrite"
    CASTING = "casting"


def settled(options: Options, how: Implementation) -> Options:
    """The options for an implementation: CASTING has lists of its own."""
    if how is Implementation.GRAPH_REWRITE:
        return options
    return replace(options, lists=_casting(options.operator_lists()))


def _casting(lists: OpLists) -> OpLists:
    """The lists with INFER as ALLOW: half whatever is before and behind; what users moved stays."""
    entries = {key: _forced(entry) for key, entry in lists.entries.items()}
    return replace(lists, name=CASTING, entries=MappingProxyType(entries))


def _forced(entry: Entry) -> Entry:
    if entry.kind is not Kind.INFER or entry.authority is not Authority.LIST:
        return entry
    return Entry(Kind.ALLOW, Evidence(Authority.LIST, Reason.LISTED, subject=CASTING, text=_WHY))


_WHY = "casting: every layer computes in half"
