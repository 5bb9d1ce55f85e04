import numpy as np
import onnx
import pytest

from amp_rewrite import demo


def nodes(model):
    """All nodes of the model, including those in the loop's body."""
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    return [*model.graph.node, *loop.attribute[0].g.node]


def test_one_seed_gives_the_same_bytes():
    """The network is a function of its seed, and another seed gives other weights."""
    first, second, other = (demo.network(seed).SerializeToString() for seed in (0, 0, 1))
    assert first == second
    assert first != other


def test_the_checker_accepts_it_in_full():
    """The network is valid, and the type of every value in it can be inferred."""
    model = demo.network()
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    typed = {info.name for info in [*inferred.value_info, *inferred.output]}
    assert typed == {name for node in model.graph.node for name in node.output}


def test_every_node_has_a_unique_name():
    """Every node, also in the loop, can be named in `explain`."""
    names = [node.name for node in nodes(demo.network())]
    assert all(names)
    assert len(names) == len(set(names))


def test_every_weight_is_used():
    """Every initializer is used by a node, in the graph or in the loop."""
    model = demo.network()
    read = {name for node in nodes(model) for name in node.input}
    assert {weight.name for weight in model.graph.initializer} <= read


def test_the_mask_is_beyond_half():
    """Only the mask exceeds float16's range, so that the range analysis has a finding."""
    beyond = {
        weight.name
        for weight in demo.network().graph.initializer
        if np.abs(onnx.numpy_helper.to_array(weight)).max() > np.finfo(np.float16).max
    }
    assert beyond == {"attention_mask"}


def test_it_runs():
    """Probabilities are finite, sum to one, and differ between two images."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        demo.network().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (probabilities,) = session.run(None, demo.feeds())
    assert probabilities.shape == (2, 10)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-5)
    assert not np.allclose(*probabilities, atol=1e-3)
