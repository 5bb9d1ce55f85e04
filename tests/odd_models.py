"""Models that use what ONNX has to offer: those of `cases/odd_models.cases`, by table and name."""

from tests import case_files

TEXTS = {
    f"{case.sentence.split()[0].strip(':,')}: {case.name}": case.model
    for case in case_files.read(case_files.FOLDER / "odd_models.cases")
}
