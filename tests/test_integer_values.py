"""A long way of positions to an angle; `integer_values.cases` has the short ones."""

from tests.text import kept


def test_a_way_to_an_angle_is_followed_to_its_end():
    """Positions that go through many products to a sine are float32 all the way, however long that is."""
    products = 200
    steps = " ".join(f"a{i + 1} = MatMul (a{i}, w)" for i in range(products))
    text = f"""g (int64[2,2] p) => (float[2,2] y) <float[2,2] w> {{
        a0 = Cast <to = 1> (p) {steps} y = Sin (a{products}) }}"""
    assert len(kept(text)) == products + 2
