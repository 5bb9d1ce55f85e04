"""Precision policies by the names of Keras: `mixed_float16`, `mixed_bfloat16` and `float32`.

Keras computes layers in the first type of a policy, keeps variables in float32, and advises float32 for the
softmax at the end of a model (tf.keras.mixed_precision.Policy, and its guide "Mixed precision").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from amp_rewrite import arguments
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half
from amp_rewrite.policy.operator_lists import OpLists
from amp_rewrite.policy.options import Options

FLOAT32 = "float32"
_COMPUTE: dict[str, Half | None] = {"mixed_float16": FLOAT16, "mixed_bfloat16": BFLOAT16, FLOAT32: None}
NAMES = tuple(_COMPUTE)


@dataclass(frozen=True, slots=True)
class Policy:
    """A precision policy: `mixed_float16`, `mixed_bfloat16`, or `float32`, where nothing becomes half.

    Under a mixed one, inputs and outputs keep their types, as do the weights of a train step, and the softmax
    that makes an output stays float32. Raises OptionError for another name.

    Examples:
        >>> from amp_rewrite.options import Policy
        >>> Policy("mixed_bfloat16").compute.name
        'bfloat16'
    """

    name: str

    def __init__(self, name: str) -> None:
        if arguments.instance("Policy.name", name, str).lower() not in NAMES:
            problem = f"{arguments.describe(name)} is not one of {', '.join(NAMES)}"
            raise arguments.refused("Policy.name", problem)
        object.__setattr__(self, "name", name.lower())

    @property
    def compute(self) -> Half | None:
        """The compute type of products and their neighbours; None for float32."""
        return _COMPUTE[self.name]

    @property
    def variable(self) -> str:
        """The type of the weights of a train step."""
        return FLOAT32

    def options(self, base: Options | None = None) -> Options:
        """Return the options that the policy stands for, with the given values for all that it leaves open.

        Examples:
            >>> from amp_rewrite import rewrite
            >>> from amp_rewrite.demo import network
            >>> from amp_rewrite.options import Policy
            >>> rewrite(network(), Policy("float32").options()).report.nodes.half
            0
        """
        options = Options() if base is None else base
        if self.compute is None:
            return replace(options, lists=_NOTHING, keep_softmax=True)
        return replace(options, half=self.compute, keep_softmax=True)


_NOTHING = OpLists(FLOAT32, "nothing is half", MappingProxyType({}))


def of(value: object) -> Policy | None:
    """Return the policy, looked up if given by name; None for anything else."""
    if isinstance(value, Policy):
        return value
    return Policy(value) if isinstance(value, str) and value.lower() in NAMES else None
