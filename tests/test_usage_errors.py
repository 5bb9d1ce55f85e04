"""A wrong flag, value or argument is one line, which ends in what would help."""

import pytest

from tests.commands import failure, run

HALF = "float16 is what amp-rewrite MODEL gives; --to bfloat16 asks for the other half type"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("m.onnx --fp16", f"there is no flag --fp16; {HALF}"),
        ("m.onnx --bf16", "there is no flag --bf16; write --to bfloat16"),
        ("m.onnx --precision bf16", "there is no flag --precision; write --to float16 or --to bfloat16"),
        ("m.onnx --to fp16", "--to 'fp16' is not one of 'float16', 'bfloat16'; did you mean float16?"),
        ("m.onnx --to BF16", "--to 'BF16' is not one of 'float16', 'bfloat16'; did you mean bfloat16?"),
        ("m.onnx --tolerence error=1", "there is no flag --tolerence; did you mean --tolerance?"),
        ("m.onnx --x", "there is no flag --x; see amp-rewrite rewrite --help"),
        ("m.onnx --samples 0", "--samples 0 is not in the range x>=1; see amp-rewrite rewrite --help"),
        ("m.onnx --a\nb", "there is no flag --a\\nb; see amp-rewrite rewrite --help"),
        (
            "zoo models -o half --to bfloat16",
            "there is no flag --to of zoo; flags of amp-rewrite MODEL go after two dashes: -- --to",
        ),
        ("zoo . -o half -- --fp16", f"there is no flag --fp16; {HALF}"),
        ("certify a b --min-flops 1", "there is no flag --min-flops of certify; it is a flag of coverage"),
        ("verify a", "missing argument 'REWRITTEN'; see amp-rewrite verify --help"),
        ("verify a b c", "got unexpected extra argument (c); see amp-rewrite verify --help"),
        ("zoo models", "missing option '-o' / '--output'; see amp-rewrite zoo --help"),
    ],
)
def test_one_line(words, said, tmp_path, monkeypatch):
    """Exit code 2, and one line: what is wrong, then what was meant, or where the flags are listed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").touch()
    done = run(*words.split(" "))
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"amp-rewrite: {said}\n")


@pytest.mark.parametrize("before", [(), ("rewrite",), ("explain",)], ids=str)
def test_a_model_named_like_a_flag(before, tmp_path, monkeypatch):
    """A file whose name begins with a dash is told apart from a flag that does not exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-m.onnx").touch()
    assert failure(*before, "-m.onnx") == "amp-rewrite: -m.onnx would be read as flags; write ./-m.onnx"
    assert "there is no flag" in failure(*before, "-n.onnx")


def test_standard_input_is_no_model():
    """What other tools take as standard input is refused by saying so."""
    assert failure("-").endswith("no model is read from standard input: save it to a file first")
