"""Models that use what ONNX has to offer, as text.

What is declared and made by nothing is a weight (tests/text.py).
"""

X, XW = "float[4,4] x", "g (float[4,4] x) => (float[4,4] y) <float[4,4] w>"
LOOP = f"g ({X}, int64 n, bool c) => (float[4,4] y) <float[4,4] w>"
CARRIED = "(int64 i, bool a, float[4,4] s) => (bool b, float[4,4] t)"
FEW = f"{CARRIED} <int64 m = {{3}}>"
IF = f"g ({X}, bool c) => (float[4,4] y) <float[4,4] w>"
SCAN = "g (float[4] x, float[3,4] xs) => (float[4] y, float[3,4] ys) <float[4,4] w>"
OF_TWO = "(float[4] s, float[4] e) => (float[4] t, float[4] u)"
STEP = "a = Add (s, e) t = MatMul (a, w) u = Relu (t)"
OLD_SCAN = """<ir_version: 3, opset_import: ["" : 8]>
g (int64[1] n, float[1,4] x, float[1,3,4] xs, float[4,4] w) => (float[1,4] y, float[1,3,4] ys)"""

CONTROL = {
    "trip count alone": LOOP
    + f'{{ y = Loop (n, "", x) <body = l {CARRIED} {{ b = Identity (a) t = MatMul (s, w) }}> }}',
    "condition alone": LOOP
    + f'{{ y = Loop ("", c, x) <body = l {FEW} {{ b = Less (i, m) t = MatMul (s, w) }}> }}',
    "neither": LOOP + f'{{ y = Loop ("", "", x) <body = l {FEW} {{ b = Less (i, m) t = MatMul (s, w) }}> }}',
    "a condition from half": LOOP
    + f"""{{ y = Loop (n, c, x) <body = l {CARRIED} <float m = {{900.0}}> {{
        t = MatMul (s, w) o = ReduceMax <keepdims = 0> (t) b = Less (o, m) }}> }}""",
    "weights and constants in a body": LOOP
    + f"""{{ y = Loop (n, c, x) <body = l {CARRIED} <float[4,4] v> {{ b = Identity (a)
        k = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> () m = MatMul (s, v) t = Add (m, k) }}> }}""",
    "a body that counts": LOOP
    + f"""{{ y = Loop (n, c, x) <body = l {CARRIED} {{ b = Identity (a)
        f = Cast <to = 1> (i) m = MatMul (s, w) t = Add (m, f) }}> }}""",
    "captured values": LOOP
    + f"""{{ h = MatMul (x, w) y = Loop (n, c, h) <body = l {CARRIED} {{ b = Identity (a)
        e = Sigmoid (h) m = MatMul (h, s) o = Mul (m, e) t = Mul (o, x) }}> }}""",
    "states that change places": f"""g ({X}, float[4,4] z, int64 n) => (float[4,4] y, float[4,4] v)
        <float[4,4] w> {{
        y, v = Loop (n, "", x, z) <
            body = l (int64 i, bool a, float[4,4] s, float[4,4] r) => (bool b, float[4,4] t, float[4,4] s)
            {{ b = Identity (a) t = MatMul (r, w) }}
        > }}""",
    "a result given twice": f"""g ({X}, int64 n) => (float[4,4] y, float[k,4,4] v) <float[4,4] w> {{
        y, v = Loop (n, "", x) <
            body = l (int64 i, bool a, float[4,4] s) => (bool b, float[4,4] t, float[4,4] t)
            {{ b = Identity (a) t = MatMul (s, w) }}
        > }}""",
    "no state": f"""g ({X}, int64 n) => (float[k,4,4] y) <float[4,4] w> {{
        y = Loop (n, "") <body = l (int64 i, bool a) => (bool b, float[4,4] t)
            {{ b = Identity (a) t = MatMul (x, w) }}> }}""",
    "a Loop that carries a sequence": f"""g ({X}, int64 n) => (float[k,4] y) <float[4,4] w> {{
        o = SequenceEmpty () q, r = Loop (n, "", x, o) <
            body = l (int64 i, bool a, float[4,4] s, seq(float[4,4]) d)
                => (bool b, float[4,4] t, seq(float[4,4]) e)
            {{ b = Identity (a) t = MatMul (s, w) e = SequenceInsert (d, t) }}
        > y = ConcatFromSequence <axis = 0> (r) }}""",
    "three deep": LOOP
    + f"""{{ y = Loop (n, "", x) <body = l {CARRIED} {{ b = Identity (a)
        t = Loop (n, "", s) <body = m (int64 j, bool d, float[4,4] r) => (bool f, float[4,4] o) {{
            f = Identity (d) o = If (c) <
                        then_branch = t1 () => (float[4,4] p) {{ q = MatMul (r, s) p = Sigmoid (q) }},
                        else_branch = e1 () => (float[4,4] u) {{ v = MatMul (w, r) u = Exp (v) }}>
        }}> }}> }}""",
    "branches without types": IF
    + """{ h = If (c) <then_branch = t () => (p) { p = Exp (x) },
                       else_branch = e () => (q) { q = MatMul (x, w) }> y = MatMul (h, w) }""",
    "a branch that gives what it stores": IF
    + """{ h = If (c) <then_branch = t () => (float[4,4] v) <float[4,4] v> { },
                       else_branch = e () => (float[4,4] q) { q = MatMul (x, w) }> y = MatMul (h, w) }""",
    "branches of two shapes": f"""g ({X}, bool c) => (float[k,4] y) <float[4,4] w> {{
        y = If (c) <then_branch = t () => (float[4,4] p) {{ p = MatMul (x, w) }},
                    else_branch = e () => (float[8,4] q) {{ q = Concat <axis = 0> (x, x) }}> }}""",
    "branches of an optional": IF
    + """{ o = If (c) <
            then_branch = t () => (optional(float[4,4]) p) { h = MatMul (x, w) p = Optional (h) },
            else_branch = e () => (optional(float[4,4]) q) { q = Optional (x) }>
        d = OptionalGetElement (o) y = MatMul (d, w) }""",
    "Scan": SCAN + f"{{ y, ys = Scan <num_scan_inputs = 1, body = l {OF_TWO} {{ {STEP} }}> (x, xs) }}",
    "Scan without types": SCAN
    + f"{{ y, ys = Scan <num_scan_inputs = 1, body = l (s, e) => (t, u) {{ {STEP} }}> (x, xs) }}",
    "Scan backwards": SCAN
    + f"""{{ y, ys = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
        body = l {OF_TWO} {{ {STEP} }}> (x, xs) }}""",
    "Scan without a state": """g (float[3,4] x) => (float[3,4] y) <float[4,4] w> {
        y = Scan <num_scan_inputs = 1, body = l (float[4] e) => (float[4] u) { u = MatMul (e, w) }> (x) }""",
    "Scan 8": OLD_SCAN
    + f"{{ y, ys = Scan <num_scan_inputs = 1, body = l {OF_TWO} {{ {STEP} }}> (n, x, xs) }}",
    "Scan 8 without lengths": OLD_SCAN
    + f'{{ y, ys = Scan <num_scan_inputs = 1, body = l {OF_TWO} {{ {STEP} }}> ("", x, xs) }}',
    "SequenceMap": f"""g ({X}) => (float[8,4] y, float[8,4] z) <float[4,4] w> {{
        h = MatMul (x, w) s = SequenceConstruct (x, x) r = SequenceConstruct (h, h)
        m, o = SequenceMap <
            body = l (float[4,4] e, float[4,4] f, float[4,4] k) => (float[4,4] p, float[4,4] q)
                {{ p = MatMul (e, f) q = Sigmoid (k) }}> (s, r, x)
        y = ConcatFromSequence <axis = 0> (m) z = ConcatFromSequence <axis = 0> (o) }}""",
}

SEQUENCES = {
    "in and out again": XW
    + """{ h = MatMul (x, w) i = Constant <value_int = 0> () s = SequenceConstruct (h, x)
        r = SequenceInsert (s, h, i) e = SequenceErase (r, i) d = Identity (e) a = SequenceAt (d, i)
        y = MatMul (a, w) }""",
    "split and mapped": f"""g ({X}) => (float[k,4] y) <float[4,4] w> {{
        h = MatMul (x, w) s = SplitToSequence <axis = 0> (h)
        m = SequenceMap <body = l (float[j,4] e) => (float[j,4] f) {{ f = MatMul (e, w) }}> (s)
        y = ConcatFromSequence <axis = 0> (m) }}""",
    "from the caller": """g (seq(float[4,4]) s) => (float[4,4] y, seq(float[4,4]) r) <float[4,4] w> {
        i = Constant <value_int = 0> () a = SequenceAt (s, i) y = MatMul (a, w)
        r = SequenceInsert (s, y) }""",
    "from the caller to the caller": f"""g (seq(float[4,4]) s, {X}) => (seq(float[4,4]) s, float[4,4] y)
        <float[4,4] w> {{ y = MatMul (x, w) }}""",
    "an optional": XW
    + "{ h = MatMul (x, w) o = Optional (h) d = Identity (o) a = OptionalGetElement (d) y = MatMul (a, w) }",
    "an optional of a sequence": f"""g ({X}) => (float[8,4] y) <float[4,4] w> {{
        h = MatMul (x, w) s = SequenceConstruct (h, x) o = Optional (s) a = OptionalGetElement (o)
        y = ConcatFromSequence <axis = 0> (a) }}""",
    "an optional from the caller": """g (optional(float[4,4]) o) => (float[4,4] y) <float[4,4] w> {
        a = OptionalGetElement (o) y = MatMul (a, w) }""",
    "a sequence that a stranger reads": f"""<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g ({X}) => (float[8,4] y) <float[4,4] w> {{ h = MatMul (x, w) s = SequenceConstruct (h, x)
        t = my.Mystery (s) y = ConcatFromSequence <axis = 0> (s) }}""",
    "sequences of other types": f"""g ({X}, double[4,4] d) => (double[4,4] z, int64[k] n, float[4,4] y)
        <float[4,4] w> {{ y = MatMul (x, w) e = SequenceEmpty <dtype = 11> () s = SequenceInsert (e, d)
        z = ConcatFromSequence <axis = 0> (s) a = Shape (y) r = SequenceConstruct (a, a)
        n = ConcatFromSequence <axis = 0> (r) }}""",
}

MY = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]>'
F, FM = '<domain: "my", opset_import: ["" : 17]>', '<domain: "my", opset_import: ["" : 17, "my" : 1]>'
CALLED = f"{MY} {XW}"

FUNCTIONS = {
    "called twice, in two orders": f"""{CALLED} {{ h = my.f (x, w) y = my.f (w, h) }}
        {F} f (a, b) => (c) {{ c = MatMul (a, b) }}""",
    "names of the caller's": f"""{CALLED} {{ m = Sigmoid (x) c = my.f (x, w) d = my.f (c, m) y = Add (d, c) }}
        {F} f (a, b) => (c) {{ m = MatMul (a, b) w = Relu (m) x = Sigmoid (w) c = Relu (x) }}""",
    "an argument that is left out": f"""{CALLED} {{ y = my.f (x, w, "") }}
        {F} f (a, b, k) => (c) {{ d = MatMul (a, b) c = Clip (d, k) }}""",
    "an argument too few": f"""{CALLED} {{ y = my.f (x, w) }}
        {F} f (a, b, k) => (c) {{ d = MatMul (a, b) c = Clip (d, k) }}""",
    "attributes through two functions": f"""{CALLED} {{ h = my.f <alpha = 0.5> (x, w) y = my.f (h, w) }}
        {FM} f <alpha: float = 0.3> (a, b) => (c) {{ c = my.h <beta: float = @alpha> (a, b) }}
        {F} h <beta> (a, b) => (c) {{ m = MatMul (a, b) c = LeakyRelu <alpha: float = @beta> (m) }}""",
    "an attribute that is a tensor": f"""{CALLED} {{ y = my.f <k = float[4] {{0.1, 0.2, 0.3, 0.4}}> (x, w) }}
        {F} f <k> (a, b) => (c) {{ d = Constant <value: tensor = @k> () m = MatMul (a, b)
            c = Add (m, d) }}""",
    "an attribute that is a type": f"""{CALLED} {{ h = my.f <to = 10> (x, w) y = Cast <to = 1> (h) }}
        {F} f <to> (a, b) => (c) {{ m = MatMul (a, b) c = Cast <to: int = @to> (m) }}""",
    "a loop in a function in a loop": f"""{MY} g ({X}, int64 n) => (float[4,4] y) <float[4,4] w> {{
        y = Loop (n, "", x) <body = l {CARRIED} {{ b = Identity (a) t = my.f (s, w, n) }}> }}
        {F} f (p, q, n) => (c) {{ c = Loop (n, "", p) <body = l {CARRIED}
            {{ b = Identity (a) t = MatMul (s, q) }}> }}""",
    "an attribute in a branch": f"""{MY} {IF} {{ y = my.f <alpha = 0.2> (x, w, c) }}
        {F} f <alpha> (a, b, k) => (c) {{ c = If (k) <then_branch = t () => (p) {{ p = MatMul (a, b) }},
            else_branch = e () => (q) {{ q = LeakyRelu <alpha: float = @alpha> (a) }}> }}""",
    "an import of its own": f"""{CALLED} {{ y = my.f (x, w) }}
        <domain: "my", opset_import: ["" : 17, "com.microsoft" : 1]>
        f (a, b) => (c) {{ m = com.microsoft.FusedMatMul (a, b) c = com.microsoft.FastGelu (m) }}""",
    "overloads": f"""<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
        {XW} {{ a = my.f:one (x, w) y = my.f:two (a, w) }}
        <domain: "my", overload: "one", opset_import: ["" : 21]> f (a, b) => (c) {{ c = MatMul (a, b) }}
        <domain: "my", overload: "two", opset_import: ["" : 21]> f (a, b) => (c) {{ c = Add (a, b) }}""",
    "two domains, one name": f"""<ir_version: 8, opset_import: ["" : 17, "my" : 1, "his" : 1]>
        {XW} {{ m = my.f (x, w) y = his.f (m, w) }} {F} f (a, b) => (c) {{ c = MatMul (a, b) }}
        <domain: "his", opset_import: ["" : 17]> f (a, b) => (c) {{ c = Add (a, b) }}""",
    "no arguments": f"""{CALLED} {{ k = my.f () m = MatMul (x, w) y = Add (m, k) }}
        {F} f () => (c) {{ c = Constant <value_float = 0.3> () }}""",
    "sequences in and out": f"""{MY} g ({X}) => (float[8,4] y) <float[4,4] w> {{ m = MatMul (x, w)
        s = my.pair (m, x) y = my.join (s) }} {F} pair (a, b) => (c) {{ c = SequenceConstruct (a, b) }}
        {F} join (a) => (c) {{ c = ConcatFromSequence <axis = 0> (a) }}""",
    "a call between products": f"""{CALLED} {{ p = MatMul (x, w) q = my.f (p) y = MatMul (q, w) }}
        {F} f (a) => (c) {{ c = Softmax (a) }}""",
    "half inside": f"""{CALLED} {{ y = my.f (x, w) }} {F} f (a, b) => (c) {{
        d = Cast <to = 10> (a) e = Cast <to = 10> (b) m = MatMul (d, e) c = Cast <to = 1> (m) }}""",
}

ALL = """<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1, "ai.onnx.ml" : 3,
    "ai.onnx.preview.training" : 1, "my" : 1]>"""
AND, SCALE = f"{XW[:-1]},", "float s = {0.05}, uint8 z = {0}"

OPERATORS = {
    "ai.onnx.ml": f"""{ALL} g ({X}) => (float[4,1] y) <float[4,4] w> {{ m = MatMul (x, w)
        s = ai.onnx.ml.Scaler <offset = [0.1, 0.1, 0.1, 0.1], scale = [1.0, 2.0, 1.0, 1.0]> (m)
        y = ai.onnx.ml.LinearRegressor <coefficients = [0.1, 0.2, 0.3, 0.4], intercepts = [0.5]> (s) }}""",
    "maps": f"""{ALL} g (float[4,2] x) => (seq(map(int64, float)) y, int64[n] l) <float[2,2] w> {{
        h = MatMul (x, w) l, p = ai.onnx.ml.LinearClassifier <coefficients = [0.1, 0.2, 0.3, 0.4],
            intercepts = [0.5, 0.1], classlabels_ints = [0, 1]> (h)
        y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (p) }}""",
    "training": f"""{ALL} g (float r, int64 n, {X}, float[4,4] h) => (float[4,4] y, float[4,4] k)
        <float[4,4] w> {{ d = MatMul (x, w)
        y, k = ai.onnx.preview.training.Momentum <alpha = 0.95, beta = 0.1,
            norm_coefficient = 0.001, mode = "standard"> (r, n, x, d, h) }}""",
    "gradients": f"""{ALL} g ({X}) => (float[4,4] y, float[4,4] d) <float[4,4] w> {{ y = MatMul (x, w)
        d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x) }}""",
    "strangers": f"""{ALL} {XW} {{ h = MatMul (x, w) a, b = my.Op (h, x)
        c = MatMul (a, w) y = Add (c, b) }}""",
    "a stranger's body": f"""{ALL} {XW} {{ h = MatMul (x, w)
        a = my.Op <body = l (float[4,4] s) => (float[4,4] t) {{ u = MatMul (s, h) t = MatMul (u, w) }}> (h)
        y = MatMul (a, w) }}""",
    "contrib": f"""{ALL} g (float[1,4,4] x) => (float[1,4,4] y) <float[4,4] w, float[4] b> {{
        h = MatMul (x, w) a, "", "", s = com.microsoft.SkipLayerNormalization (h, x, b, "", b)
        t = com.microsoft.BiasGelu (s, b) u = Add (a, t) y = MatMul (u, w) }}""",
    "weights of four bits": f"""{ALL} g (float[4,32] x) => (float[4,4] y)
        <uint8[4,1,16] q, float[4] s, uint8[4] z, float[4] b, float[4,4] w, float[32,32] u> {{
        m = MatMul (x, u)
        h = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (m, q, s, z, "", b)
        y = MatMul (h, w) }}""",
    "quantised": f"""{ALL} {AND} {SCALE}> {{ h = MatMul (x, w) q = QuantizeLinear (h, s, z)
        d = DequantizeLinear (q, s, z) m = MatMul (d, w) p = QuantizeLinear (m, s, z)
        y = DequantizeLinear (p, s, z) }}""",
    "a scale that others read": f"""{ALL} {AND} {SCALE}> {{ h = MatMul (x, w)
        q = QuantizeLinear (h, s, z) d = DequantizeLinear (q, s, z) m = MatMul (d, w) y = Mul (m, s) }}""",
    "integer operators": f"""{ALL} {AND} {SCALE}, uint8[4,4] v> {{ h = MatMul (x, w)
        q = QuantizeLinear (h, s, z) m = QLinearMatMul (q, s, z, v, s, z, s, z)
        d = DequantizeLinear (m, s, z) y = MatMul (d, w) }}""",
    "quantised at run time": f"""{ALL} {AND} uint8[4,4] v, uint8 z = {{0}}> {{ h = MatMul (x, w)
        q, s, o = DynamicQuantizeLinear (h) m = MatMulInteger (q, v, o, z) f = Cast <to = 1> (m)
        d = Mul (f, s) y = MatMul (d, w) }}""",
    "weights in blocks": f"""{ALL} {AND} int8[4,4] v, float[2,4] s> {{
        d = DequantizeLinear <axis = 0, block_size = 2> (v, s) h = MatMul (x, d) y = MatMul (h, w) }}""",
    "double": f"""{ALL} {AND} double[4,4] v> {{ h = MatMul (x, w) d = Cast <to = 11> (h)
        e = MatMul (d, v) f = Cast <to = 1> (e) y = MatMul (f, w) }}""",
    "strings": f"""{ALL} g (string[4] t, {X}) => (string[4] u, string[2] v, float[4,4] y) <float[4,4] w> {{
        u = Identity (t) v = Constant <value_strings = ["a", "b"]> () y = MatMul (x, w) }}""",
    "complex": f"""{ALL} g (complex64[4] c, {X}) => (complex64[4] d, float[4,4] y) <float[4,4] w> {{
        d = Identity (c) y = MatMul (x, w) }}""",
    "what is left out": f"""{ALL} g ({X}) => (float[4,4] y, float[4,1] v, float[4,2] k)
        <float[4,4] w, float[4] b, int64[1] n = {{2}}> {{ h = MatMul (x, w) c = Clip (h, "", "")
        y, "", v = LayerNormalization (c, b, b) k, i = TopK (y, n) }}""",
    "a weight that leaves": f"g ({X}) => (float[4,4] y, float[4,4] w) <float[4,4] w> {{ y = MatMul (x, w) }}",
    "an input that leaves": f"g ({X}) => (float[4,4] x, float[4,4] y) <float[4,4] w> {{ y = MatMul (x, w) }}",
    "a value that leaves twice": f"""g ({X}) => (float[4,4] y, float[4,4] y) <float[4,4] w> {{
        y = MatMul (x, w) }}""",
    "nothing": "g () => () { }",
    "no nodes": f"g ({X}) => (float[4,4] x) {{ }}",
    "no inputs": "g () => (float[4,4] y) <float[4,4] w> { y = MatMul (w, w) }",
    "a node that nobody reads": f"{XW} {{ h = MatMul (x, w) d = MatMul (h, w) y = Relu (h) }}",
    "nodes of one name": f"{XW} {{ [n] h = MatMul (x, w) [n] e = Sigmoid (h) [n] y = MatMul (e, w) }}",
    "the newest opset": f"""<ir_version: 13, opset_import: ["" : 25]>
        {XW} {{ h = MatMul (x, w) g = Gelu (h) y = Swish (g) }}""",
}

H = f"g ({X}) => (float[4,4] y) <float16[4,4] h, float[4,4] w>"

MIXED = {
    "half between Casts": H + "{ a = Cast <to = 10> (x) b = MatMul (a, h) y = Cast <to = 1> (b) }",
    "a softmax in float32": H
    + """{ a = Cast <to = 10> (x) b = MatMul (a, h) c = Cast <to = 1> (b) d = Softmax (c)
        e = Cast <to = 10> (d) f = MatMul (e, h) y = Cast <to = 1> (f) }""",
    "a part in float32": H
    + "{ a = Cast <to = 10> (x) b = MatMul (a, h) c = Cast <to = 1> (b) d = MatMul (c, w) y = Relu (d) }",
    "bfloat16 and float16": H
    + """{ a = Cast <to = 16> (x) b = Cast <to = 10> (a) c = MatMul (b, h) d = Cast <to = 1> (c)
        y = MatMul (d, w) }""",
    "weights in half": H + "{ v = Cast <to = 1> (h) a = MatMul (x, v) b = Sigmoid (v) y = MatMul (a, b) }",
    "names like ours": H
    + """{ [x__float16] x__float16 = Cast <to = 10> (x) b = MatMul (x__float16, h)
        [y__float32] y__float16 = Cast <to = 1> (b) y = MatMul (y__float16, w) }""",
    "half at the borders": """g (float16[4,4] x) => (float16[4,4] y) <float[4,4] w> {
        a = Cast <to = 1> (x) b = MatMul (a, w) y = Cast <to = 10> (b) }""",
    "half states": f"""g ({X}, int64 n) => (float[4,4] y) <float[4,4] w> {{ h = Cast <to = 10> (x)
        r = Loop (n, "", h) <body = l (int64 i, bool a, float16[4,4] s) => (bool b, float16[4,4] t)
            {{ b = Identity (a) p = Cast <to = 1> (s) q = MatMul (p, w) t = Cast <to = 10> (q) }}>
        d = Cast <to = 1> (r) y = MatMul (d, w) }}""",
    "half in a sequence": f"""g ({X}) => (seq(float16[4,4]) y) <float[4,4] w> {{
        a = MatMul (x, w) b = Cast <to = 10> (a) y = SequenceConstruct (b, b) }}""",
}

TEXTS = {
    f"{table}: {name}": written
    for table, texts in (
        ("CONTROL", CONTROL),
        ("SEQUENCES", SEQUENCES),
        ("FUNCTIONS", FUNCTIONS),
        ("OPERATORS", OPERATORS),
        ("MIXED", MIXED),
    )
    for name, written in texts.items()
}
"""All of them, by table and name."""
