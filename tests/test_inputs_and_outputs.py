"""What is declared of outputs; `inputs_and_outputs.cases` has their names and types."""

from tests.text import model, rewritten


def test_what_callers_know_of_an_output_stays_with_it():
    """An output keeps its shape, its text, its metadata and its quantisation annotation."""
    proto = model("g (float[N,4] x) => (float[N,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    proto.graph.output[0].doc_string = "the answer"
    proto.graph.output[0].metadata_props.add(key="unit", value="metres")
    annotation = proto.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    after = rewritten(proto).model
    assert after.graph.output[0] == proto.graph.output[0]
    inside = next(info for info in after.graph.value_info if info.name == "y__float16")
    assert (inside.doc_string, len(inside.metadata_props)) == ("", 0)
    assert set(map(str, after.graph.quantization_annotation)) == {str(annotation)}
