"""Models that use what ONNX has to offer: those of `cases/odd_models.cases`, by table and name."""

from pathlib import Path

from tests import case_files

TEXTS = {
    f"{case.sentence.split()[0].strip(':,')}: {case.name}": case.model
    for case in case_files.read(Path(__file__).parent / "cases" / "odd_models.cases")
}
