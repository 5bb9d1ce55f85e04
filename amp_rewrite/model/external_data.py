"""Tensors stored outside the model file: finding their files, and checking that they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, ModelError

KEY = b"location"
"""The key of the file name in an external tensor: a model without these bytes has no external data."""


def resolve(model: ir.Model, path: Path) -> dict[Path, int]:
    """Replaces the file name in every external tensor of the model at a path by the full path of the file.

    Tensors in attributes are loaded: only initializers are written as external data again. Returns the files,
    and the bytes of tensors in each. Raises ModelError for a tensor whose data is missing or incomplete, or
    outside the model's folder: that of the path, or that of the file itself where the path is a link.
    """
    roots = frozenset((path.parent.resolve(), path.resolve().parent))
    found: dict[Path, int] = {}

    def resolved(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        tensor = _resolved(tensor, path.parent, roots, path)
        file = Path(tensor.path)
        found[file] = found.get(file, 0) + tensor.nbytes
        return tensor

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = resolved(value.const_value)
    for node, attribute in list(_tensor_attributes(model)):
        tensor = attribute.as_tensor()
        if isinstance(tensor, ir.ExternalTensor):
            held = ir.Tensor(resolved(tensor).numpy().copy(), dtype=tensor.dtype, name=tensor.name)
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, held)
    return found


def check(model: ir.Model) -> None:
    """Raises ModelError, as `resolve` does, for a model in memory; a tensor without a base folder may be in
    any folder: the caller chose the path.
    """
    for tensor in _external(model):
        folder = Path(tensor.base_dir)
        anywhere = Path(tensor.path).resolve().parents
        roots = (folder.resolve(),) if tensor.base_dir else anywhere
        _resolved(tensor, folder, frozenset(roots), "the given model")


def files(model: ir.Model) -> frozenset[Path]:
    """The full paths of the files with external data of a model."""
    return frozenset(Path(tensor.path).resolve() for tensor in _external(model))


def folder(model: ir.Model) -> Path | None:
    """The folder of the external tensors of a model in memory; None where that is none, or several."""
    found = {Path(tensor.base_dir or Path(tensor.path).parent) for tensor in _external(model)}
    return found.pop() if len(found) == 1 else None


def size_of(model: ir.Model) -> int:
    """The bytes of all tensors of a model, external or not."""
    return sum(tensor.nbytes for tensor in _tensors(model))


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    return (tensor for tensor in _tensors(model) if isinstance(tensor, ir.ExternalTensor))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of all graphs, and the tensors in attributes."""
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
    """The same tensor with the full path of its file, which is checked.

    The result has no base folder: with one, onnx-ir would check the path again and reject a file with several
    hard links, which model stores use and runtimes accept.
    """
    place = (folder / tensor.location).resolve()
    what = f"the data of '{tensor.name}'" if tensor.name else "the data of a tensor"
    if roots.isdisjoint(place.parents):
        raise ModelError(
            f"{what} would lie outside the model's folder",
            where=where,
            remedy="keep the file itself, not a link to another folder, beside the model",
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
    except (OSError, ValueError) as error:  # the name may contain what no file system accepts
        raise ModelError(
            f"{what} should be in {tensor.location}, and that cannot be read",
            where=where,
            remedy="put the file beside the model",
        ) from error


def _check_extent(tensor: ir.ExternalTensor, what: str, size: int, where: str | Path) -> None:
    """Checks that shape, offset and length agree with each other and with the size of the file."""
    needed, offset, length = tensor.nbytes, tensor.offset or 0, tensor.length
    if min(tensor.shape.numpy(), default=0) < 0 or length not in (None, 0, needed):
        raise ModelError(f"{what} does not have the size of its shape", where=where, remedy=EXPORT_AGAIN)
    if not 0 <= offset <= size - needed:
        raise ModelError(f"{what} ends beyond the end of {tensor.location}", where=where, remedy=EXPORT_AGAIN)
