"""Still more faults that a rewrite might make: of what a node reads, gives and states."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, defs, helper

from tests.certificate_mutants import is_float_cast, live_nodes, pick, position


def _schema(model, node):
    """The schema of a node; None where onnx has none."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    try:
        return defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return None


def more_inputs(model, random):
    """A node reads one value more, behind others or behind some that are left out."""
    holder, node = pick(random, [(h, n) for h, n in live_nodes(model) if n.input])
    at = position(holder.graph, node)
    before = [name for other in holder.graph.node[:at] for name in other.output if name]
    value = pick(random, [*before, *holder.visible])
    node.input.extend([*[""] * int(random.integers(3)), value])
    return f"{node.op_type} reads {value} as well"


def more_outputs(model, random):
    """A node gives one value more, which nobody reads."""
    node = pick(random, [n for _, n in live_nodes(model)])
    node.output.append("mutant")
    return node.op_type


def outputs(model, random):
    """Two outputs of a node change places."""
    nodes = [n for _, n in live_nodes(model) if sum(map(bool, n.output)) > 1]
    node = pick(random, nodes)
    given = [port for port, name in enumerate(node.output) if name]
    one, other = (int(port) for port in random.choice(given, 2, replace=False))
    node.output[one], node.output[other] = node.output[other], node.output[one]
    return f"{node.op_type} {one} {other}"


def unstated(model, random):
    """An attribute that is not its default is left out."""
    found = [(n, a) for _, n in live_nodes(model) for a in n.attribute if _says_more(model, n, a)]
    node, given = pick(random, [(n, a) for n, a in found if not is_float_cast(n)])
    name = f"{node.op_type}.{given.name}"
    node.attribute.remove(given)
    return name


def _says_more(model, node, given):
    """Whether an attribute is one of its operator, and not the default."""
    schema = _schema(model, node)
    if schema is None or given.name not in schema.attributes or given.type == AttributeProto.GRAPH:
        return False
    default = schema.attributes[given.name].default_value
    if not default.name:
        return schema.attributes[given.name].required
    return helper.get_attribute_value(default) != helper.get_attribute_value(given)


def next_number(model, random):
    """A float of an attribute is the next one that there is."""
    floats = [a for _, n in live_nodes(model) for a in n.attribute if a.type == AttributeProto.FLOAT]
    given = pick(random, [a for a in floats if np.isfinite(a.f)])
    given.f = float(np.nextafter(np.float32(given.f), np.float32(np.inf)))
    return given.name


KINDS = (more_inputs, more_outputs, outputs, unstated, next_number)
