"""A wrong flag, value or argument is one line, which ends in what would help."""

import onnx
import pytest

from tests.commands import failure, rows
from tests.text import model

MISTAKES = """
m.onnx --to fp8
    | --to 'fp8' is not one of 'float16', 'bfloat16', 'mixed_float16', 'mixed_bfloat16', 'float32'; see
m.onnx --tolerence error=1
    | amp-rewrite: there is no flag --tolerence; did you mean --tolerance?
m.onnx --x
    | amp-rewrite: there is no flag --x; see amp-rewrite rewrite --help-all
m.onnx --samples 0
    | amp-rewrite: --samples 0 is not 1 or more; see amp-rewrite rewrite --help-all
m.onnx --tolerance eror=1                      | there is no tolerance eror; did you mean error?
certify a b --rules 1                          | there is no flag --rules of certify; see
verify a
    | amp-rewrite: missing argument 'REWRITTEN'; see amp-rewrite verify --help
verify a b c
    | amp-rewrite: got unexpected extra argument (c); see amp-rewrite verify --help
none.onnx                                      | none.onnx: there is no such file; check the path
model.onnx --allow Matmul                      | there is no operator Matmul; did you mean MatMul?
model.onnx --allow Exp --deny Exp              | Exp is in both --allow and --deny
model.onnx --keep-full prodct                  | did you mean product
model.onnx --keep-full [                       | [ is not a valid regular expression
model.onnx --list defalt                       | did you mean default?
model.onnx --plan none.json                    | none.json: cannot be read
model.onnx -o model.onnx                       | is the input itself; choose another place, or use --in-place
model.onnx -o model.onnx/out.onnx                    | cannot be written
model.onnx -o m.ort                            | m.ort would be read as another format, by its name; name the
model.onnx -o M.JSON                           | M.JSON would be read as another format, by its name; name
model.onnx --io half --keep-io nosuch          | no float32 input or output is called 'nosuch'
model.onnx --external-data 2                   | say auto, always, never, or a size such as 2GB
model.onnx --external-data 0GB                 | --external-data 0GB is not a valid value
explain model.onnx rot                         | no node is called 'rot'; did you mean root
demo -o model.onnx                             | cannot be written
model.onnx --keep-io x                         | --keep-io is for --io half or state; add one
model.onnx --dry-run --json model.onnx/r.json        | ; choose another place
verfiy model.onnx model.onnx                   | no command or file 'verfiy'; did you mean verify?
demo.onx                                       | demo.onx: there is no such file; check the path
model.onnx --plan plan.json --to float16       | amp-rewrite: --plan decides everything; leave out --to
model.onnx --plan plan.json --target any       | amp-rewrite: --plan decides everything; leave out --target
model.onnx --plan plan.json --list default     | amp-rewrite: --plan decides everything; leave out --list
model.onnx --plan plan.json --allow Exp        | amp-rewrite: --plan decides everything; leave out --allow
model.onnx --plan plan.json --list infer=Exp   | amp-rewrite: --plan decides everything; leave out --list
model.onnx --plan plan.json --list clear=Exp   | amp-rewrite: --plan decides everything; leave out --list
model.onnx --plan plan.json --deny Exp         | amp-rewrite: --plan decides everything; leave out --deny
model.onnx --plan plan.json --keep-full x      | amp-rewrite: --plan decides everything; leave out --keep-full
model.onnx --plan plan.json --force-half x
    | amp-rewrite: --plan decides everything; leave out --force-half
model.onnx --plan plan.json --level default    | amp-rewrite: --plan decides everything; leave out --level
model.onnx --plan plan.json --skip follow | amp-rewrite: --plan decides everything; leave out --skip follow
model.onnx --plan plan.json --io keep          | amp-rewrite: --plan decides everything; leave out --io
model.onnx --plan plan.json --keep-io x        | amp-rewrite: --plan decides everything; leave out --keep-io
model.onnx --plan plan.json --skip inline
    | amp-rewrite: --plan decides everything; leave out --skip inline
explain model.onnx --plan plan.json --deny Exp --io half
    | amp-rewrite: --plan decides everything; leave out --deny and --io
-                                              | no model is read from standard input: save it to a file first
"""
PRODUCTS = """g (float[n,4] x, float[4,4] w) => (float[n,4] y) {
    [product] a = MatMul (x, w) [root] y = Sqrt (a) }"""


@pytest.mark.parametrize(("arguments", "message"), rows(MISTAKES))
def test_a_mistake_is_one_line(tmp_path, monkeypatch, arguments, message):
    """Exit code 2: what is wrong, then what was meant, or where the flags are listed; nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").touch()
    onnx.save(model(PRODUCTS), tmp_path / "model.onnx")
    line = failure(*arguments.split(" "))
    assert line == message if message.startswith("amp-rewrite: ") else message in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "model.onnx"]


def test_a_mistake_of_two_lines_is_one_line():
    """What is printed of an argument is escaped."""
    line = failure("m.onnx", "--a\nb")
    assert line == "amp-rewrite: there is no flag --a\\nb; see amp-rewrite rewrite --help-all"


def test_a_word_that_no_file_can_be_called():
    """A first argument that is too long for a name is looked at as a model."""
    assert failure("x" * 5000)
