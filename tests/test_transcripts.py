"""The runner of transcripts: each kind of claim holds where it is right, and fails where it is not."""

import pytest

from tests import transcript_commands
from tests.transcript_claims import renewed
from tests.transcripts import TranscriptError, parse, run_paragraph

MODEL = """> m.onnx
    g (float[4] x) => (float[4] y) { [e] y = Exp (x) }
"""
CLAIMS = {
    "a line": ("$ echo one && echo two\none\ntwo", "$ echo one && echo two\none\nthree"),
    "a line too many": ("$ echo one\none", "$ echo one\none\ntwo"),
    "a line that is missing": ("$ printf 'one\\ntwo'\none\ntwo", "$ printf 'one\\ntwo'\none"),
    "the order": ("$ printf 'a\\nb'\n...\nb", "$ printf 'a\\nb'\nb\n..."),
    "any text": ("$ echo one two\no... two", "$ echo one two\no... three"),
    "a number": ("$ echo took 1.5e-3 s\ntook {n} s", "$ echo took long s\ntook {n} s"),
    "nothing": ("$ true", "$ echo one"),
    "absent": ("$ echo one\n...\nno: two", "$ echo one two\n...\nno: two"),
    "an exit code": ("$ exit 3\n[3]", "$ exit 3"),
    "another exit code": ("$ exit 3\n[3]", "$ exit 4\n[3]"),
    "one of two": ("$ true && exit 1\n[1]", "$ exit 1 && true"),
    "a pipe": ("$ echo one | grep -c o\n1", "$ echo one | grep -c x\n1"),
    "a row": ("$ echo {}\n    one | o", "$ echo {}\n    one | two"),
    "all of a row": ("$ echo {}\n    one | = one", "$ echo {}\n    one | = on"),
    "absent in a row": ("$ echo {}\n    one | no: two", "$ echo {}\n    one | no: one"),
    "claims of a row": ("$ echo {}\n    a b\n      | a & b", "$ echo {}\n    a b | a & c"),
    "an exit code of a row": ("$ exit {}\n    1 | [1]", "$ exit {}\n    1 |"),
    "two fillings": ("$ echo {1}-{2}\n    a | b | = a-b", "$ echo {1}-{2}\n    a | b | = b-a"),
    "variants": ("with X: a | b\n$ echo X | grep [ab]\n...", "with X: a | b\n$ echo X\na"),
    "a file": ("> f.txt\n    one\n$ cat f.txt\none", "> f.txt\n    two\n$ cat f.txt\none"),
    "a file in a line": ("> f.txt: one: two\n$ cat f.txt\none: two", "> f.txt: two\n$ cat f.txt\none: two"),
    "files": (f"{MODEL}$ ls\nm.onnx", f"{MODEL}$ ls"),
    "json": ("> a.json\n    [[1]]\n$ json a.json 0.0\n0.0: 1", "> a.json\n    [[1]]\n$ json a.json 0.0\n2"),
    "an expression": ('> a.npz = {"x": np.ones(2)}\n$ ls\na.npz', '> a.npz = {"x": np.ones(2)}\n$ ls\nb.npz'),
    "a call": ("$ call Options().half.name\nfloat16", "$ call Options().half.name\nbfloat16"),
    "a refused call": ("$ call Pins(5)\nOptionError: Pins...", "$ call Pins(5)\nModelError: ..."),
    "statements": ("$ do Path('f').touch() && ls\nf", "$ do Path('f').touch() && ls\ng"),
    "an edit": ("> a: [1]\n$ edit a 0 2 && json a\n[2]", "> a: [1]\n$ edit a 0 && json a\n[1]"),
    "standard output": ("$ amp-rewrite no.onnx 2>/dev/null\n[2]", "$ amp-rewrite no.onnx >/dev/null\n[2]"),
    "a refusal": ("! amp-rewrite no.onnx\nthere is no such file", "! amp-rewrite no.onnx\nthere is one"),
    "no refusal": ("! amp-rewrite verify\nMissing argument", "! amp-rewrite --version\namp-rewrite"),
    "a whole refusal": (
        "! amp-rewrite none.onnx\namp-rewrite: none.onnx: there is no such file; ...",
        "! amp-rewrite none.onnx\namp-rewrite: none.onnx: there is no such file",
    ),
    "refused rows": (
        "! amp-rewrite {}\n    none.onnx | there is no such file",
        "! amp-rewrite {}\n    none.onnx | there is one",
    ),
    "refused rows that are not": (
        f"{MODEL}! amp-rewrite explain {{}}\n    m.onnx rot | no node",
        f"{MODEL}! amp-rewrite explain {{}}\n    m.onnx e | Exp",
    ),
    "half": (f"{MODEL}$ half m.onnx", f"{MODEL}$ half m.onnx\ne"),
    "nodes": (f"{MODEL}$ nodes m.onnx\nExp", f"{MODEL}$ nodes m.onnx\nLog"),
    "a model": (f"{MODEL}$ onnx m.onnx\n...\n... Exp (x)\n}}", f"{MODEL}$ onnx m.onnx\n...\n... Log (x)\n}}"),
}  # fmt: skip


def ran(text, folder, **how):
    """Runs the only paragraph of a text."""
    (paragraph,) = parse(text.strip())
    run_paragraph(paragraph, [], folder, **how)
    return paragraph


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_holds_or_fails(tmp_path, claim):
    """The failure has the command, or the filling, and what was printed instead."""
    right, wrong = (f"# It holds.\n{text.strip()}" for text in CLAIMS[claim])
    (tmp_path / "right").mkdir()
    ran(right, tmp_path / "right")
    (tmp_path / "wrong").mkdir()
    with pytest.raises(TranscriptError) as caught:
        ran(wrong, tmp_path / "wrong")
    assert "\n" in caught.value.told


def test_a_refusal_writes_nothing(tmp_path, monkeypatch):
    """Exit code 2 and one line are not enough where a file has changed."""
    monkeypatch.setattr(transcript_commands, "_content", lambda _: object())
    with pytest.raises(TranscriptError, match=r"no refusal"):
        ran("# It holds.\n! amp-rewrite none.onnx\nthere is no such file", tmp_path)


@pytest.mark.parametrize(
    ("expected", "found", "made"),
    [
        ("a b c", "a x c", "a x c"),
        ("a ... c", "a x y c", "a ... c"),
        ("... c:1", "a x c:2", "... c:2"),
        ("took {n}", "took 3", "took {n}"),
        ("a b", "a b c", "a b c"),
        ("a ... old:1 ... z", "a q old:2 r z", "a ... old:2 ... z"),
    ],
)
def test_an_update_keeps_what_fits(expected, found, made):
    """What was left out stays out, patterns stay, and the rest is what is printed today."""
    if "{n}" in expected:
        assert renewed([expected], [found]) == [made]
    else:
        assert renewed(expected.split(), found.split()) == made.split()


def test_an_update_corrects_each_kind(tmp_path):
    """It writes lines, absences, exit codes and rows, and leaves the rest as it stands."""
    wrong = """# It holds.
$ printf 'one\\ntwo' && exit 1
o...
three
no: two
$ echo {}
    one | o & two
    two | tw...
! amp-rewrite none.onnx
there is one"""
    right = ran(wrong, tmp_path, is_update=True)
    assert (
        right.lines()
        == """# It holds.
$ printf 'one\\ntwo' && exit 1
o...
two
[1]
$ echo {}
    one | o & one
    two | tw...
! amp-rewrite none.onnx
amp-rewrite: none.onnx: there is no such file; check the path""".splitlines()
    )
