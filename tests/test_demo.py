"""The demo's network: a function of its seed, valid, and made of what the rewrite has to decide about."""

import numpy as np
import onnx
import pytest

from amp_rewrite import demo


def test_one_seed_gives_the_same_bytes():
    """The network is a function of its seed, and another seed gives other weights."""
    first, second, other = (demo.network(seed).SerializeToString() for seed in (0, 0, 1))
    assert first == second
    assert first != other


def test_it_is_valid_and_has_nothing_idle():
    """All types can be inferred, every node has a name of its own, in the loop too, and every weight is read;
    only the mask exceeds float16's range.
    """
    model = demo.network()
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    typed = {info.name for info in [*inferred.value_info, *inferred.output]}
    assert typed == {name for node in model.graph.node for name in node.output}
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    nodes = [*model.graph.node, *loop.attribute[0].g.node]
    names = [node.name for node in nodes]
    assert all(names)
    assert len(names) == len(set(names))
    stored = {weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer}
    assert set(stored) <= {name for node in nodes for name in node.input}
    assert [name for name, numbers in stored.items() if abs(numbers).max() > 65504] == ["attention_mask"]


def test_it_runs():
    """Probabilities are finite, sum to one, and differ between two images."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        demo.network().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (probabilities,) = session.run(None, demo.feeds())
    assert probabilities.shape == (2, 10)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-5)
    assert not np.allclose(*probabilities, atol=1e-3)
