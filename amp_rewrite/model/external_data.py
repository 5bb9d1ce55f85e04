"""Tensors that lie outside the model's own file: where they are, and that they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, ModelError

KEY = b"location"
"""The key under which a tensor names the file that holds it: a model without these bytes has none such."""


def resolve(model: ir.Model, path: Path) -> dict[Path, int]:
    """Has every external tensor of the model at a path name its file in full, once it is seen to be there.

    What attributes hold in files is taken in: only initializers are written to external data again. Returns
    the files and the bytes of tensors in each. Raises ModelError for a tensor whose data is not where
    it should be, or outside the model's folder: that in which the model is found, or that of the file itself
    where a link leads to it.
    """
    roots = frozenset((path.parent.resolve(), path.resolve().parent))
    found: dict[Path, int] = {}

    def placed(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        made = _resolved(tensor, path.parent, roots, path)
        file = Path(made.path)
        found[file] = found.get(file, 0) + made.nbytes
        return made

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = placed(value.const_value)
    for node, attribute in list(_tensor_attributes(model)):
        tensor = attribute.as_tensor()
        if isinstance(tensor, ir.ExternalTensor):
            held = placed(tensor).numpy().copy()
            taken = ir.Tensor(held, dtype=tensor.dtype, name=tensor.name)
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, taken)
    return found


def check(model: ir.Model) -> None:
    """Raises ModelError, as `settle` does, for a model in memory; a tensor that knows no folder of its own
    may lie anywhere: whoever made it chose the path.
    """
    for tensor in tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            folder = Path(tensor.base_dir)
            anywhere = Path(tensor.path).resolve().parents
            roots = (folder.resolve(),) if tensor.base_dir else anywhere
            _resolved(tensor, folder, frozenset(roots), "the given model")


def files(model: ir.Model) -> frozenset[Path]:
    """The files that hold tensors of a model, in full."""
    found = (t for t in tensors(model) if isinstance(t, ir.ExternalTensor))
    return frozenset(Path(tensor.path).resolve() for tensor in found)


def tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of all graphs, and the tensors that attributes hold."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for _, attribute in _tensor_attributes(model):
        yield attribute.as_tensor()


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for holder in (model.graph, *model.functions.values()):
        for node in holder.all_nodes():
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield node, attribute


def _resolved(
    tensor: ir.ExternalTensor, folder: Path, roots: frozenset[Path], where: str | Path
) -> ir.ExternalTensor:
    """The same tensor with the whole path of its file.

    Without a folder of its own, onnx-ir does not look at the path again: it would refuse what has a second
    hard link, as files from a store of models do, and runtimes take.
    """
    place = (folder / tensor.location).resolve()
    what = f"the data of '{tensor.name}'" if tensor.name else "the data of a tensor"
    if roots.isdisjoint(place.parents):
        raise ModelError(
            f"{what} would lie outside the model's folder",
            where=where,
            remedy="keep the file beside the model, and not as a link to another folder",
        )
    _check_extent(tensor, what, _size(place, tensor, what, where), where)
    return ir.ExternalTensor(
        place,
        tensor.offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _size(place: Path, tensor: ir.ExternalTensor, what: str, where: str | Path) -> int:
    try:
        if place.is_file():
            return place.stat().st_size
        raise OSError
    except (OSError, ValueError) as error:  # a name may hold what no file system takes
        raise ModelError(
            f"{what} should be in {tensor.location}, and that cannot be read",
            where=where,
            remedy="put the file beside the model",
        ) from error


def _check_extent(tensor: ir.ExternalTensor, what: str, size: int, where: str | Path) -> None:
    """That dimensions, offset and length fit each other and the size of the file."""
    needed, offset, length = tensor.nbytes, tensor.offset or 0, tensor.length
    if min(tensor.shape.numpy(), default=0) < 0 or length not in (None, 0, needed):
        raise ModelError(f"{what} does not have the size of its shape", where=where, remedy=EXPORT_AGAIN)
    if not 0 <= offset <= size - needed:
        raise ModelError(f"{what} ends beyond the end of {tensor.location}", where=where, remedy=EXPORT_AGAIN)


def size_of(model: ir.Model) -> int:
    """The bytes of all tensors of a model, wherever they lie."""
    return sum(tensor.nbytes for tensor in tensors(model))
