"""Ways in which exporters spell a softmax out of the value `a` as `z`, before and since opset 13 and 18."""


def reduced(operator, value, opset):
    """A reduction of the last axis, which is an input of sums since opset 13, and of all since 18."""
    is_input = opset >= 18 or (operator == "ReduceSum" and opset >= 13)
    return f"{operator} ({value}, last)" if is_input else f"{operator} <axes = [-1]> ({value})"


FRONT = "m = {maximum} d = Sub (a, m) e = Exp (d) s = {total}"
SOFTMAXES = {
    "divided": f"{FRONT} z = Div (e, s)",
    "multiplied": f"{FRONT} r = Reciprocal (s) z = Mul (e, r)",
    "multiplied, swapped": f"{FRONT} r = Reciprocal (s) z = Mul (r, e)",
    "logarithm": f"{FRONT} l = Log (s) z = Sub (d, l)",
    "sum in logarithms": f"{FRONT} l = Log (s) r = Add (l, m) z = Sub (a, r)",
    "sum in logarithms, swapped": f"{FRONT} l = Log (s) r = Add (m, l) z = Sub (a, r)",
}


def spelled(name, opset):
    """The body of a model at that opset."""
    body = SOFTMAXES[name]
    return body.format(maximum=reduced("ReduceMax", "a", opset), total=reduced("ReduceSum", "e", opset))


def between_products(body, opset=17):
    """A model with that body between two products."""
    ir_version = 10 if opset > 18 else 8
    last = ", int64[1] last = {-1}" if "last" in body else ""
    return f"""<ir_version: {ir_version}, opset_import: ["": {opset}]>
    g (float[2, 4, 8] x) => (float[2, 4, 8] y) <float[8, 8] v, float[8, 8] u{last}> {{
        a = MatMul (x, v)
        {body}
        y = MatMul (z, u)
    }}"""
