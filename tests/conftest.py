"""What holds for all tests that run here, and cases as tests: each row of tests/cases/*.cases is one."""

import contextlib

import pytest

pytest_plugins = ["tests.transcripts"]

UPDATE = "--update"


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Sessions have one thread, as many tests run beside each other as there are cores: onnxruntime's threads
    spin while they wait, which took a third of the time of tests that run models. Commands that tests start
    as processes have as many as anybody's.
    """
    from amp_rewrite.running import sessions  # noqa: PLC0415 - who gives tests to the workers needs none of it

    made = sessions.session_options

    def options(*libraries):
        found = made(*libraries)
        found.intra_op_num_threads = 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "session_options", options)
        yield


@pytest.fixture(scope="module")
def runtime():
    """onnxruntime's CPU provider in a process of its own, which runs an original once."""
    from tests.conformance.judging import Originals  # noqa: PLC0415

    with contextlib.closing(Originals()) as child:
        yield child


@pytest.fixture(scope="module")
def place():
    """Places models on CUDA, all in one process."""
    from tests.cuda_sessions import cuda_placer  # noqa: PLC0415

    with cuda_placer() as placed:
        yield placed


def pytest_addoption(parser):
    """Adds --update, for tests that are text."""
    parser.addoption(
        UPDATE, action="store_true", help="write what cases and transcripts find today, to review the diff"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Updates files in one process."""
    if config.getoption(UPDATE):
        config.option.numprocesses = 0
        config.option.dist = "no"


def pytest_collect_file(parent, file_path):
    """Collects a file of cases."""
    return CaseFile.from_parent(parent, path=file_path) if file_path.suffix == ".cases" else None


class CaseFile(pytest.File):
    """A file of cases; what an update found is written once all have run."""

    def collect(self):
        """Yield an item for each row."""
        from tests import case_files  # noqa: PLC0415

        self.found = []
        for case in case_files.read(self.path):
            yield CaseItem.from_parent(self, name=case.title, case=case)

    def teardown(self):
        """Write the claims that were wrong."""
        from tests import case_files  # noqa: PLC0415

        if self.found:
            case_files.update(self.path, self.found)


class CaseItem(pytest.Item):
    """A row of a file of cases."""

    def __init__(self, *, case, **keywords):
        super().__init__(**keywords)
        self.case = case

    def runtest(self):
        """Compare what is claimed with what is found."""
        from tests import case_checks  # noqa: PLC0415

        problems, claims = case_checks.problems(self.case)
        if problems and self.config.getoption(UPDATE) and claims != list(self.case.claims):
            self.parent.found.append((self.case, claims))
        elif problems:
            raise WrongCaseError("\n".join(problems))

    def repr_failure(self, excinfo):
        """Say which row is wrong, and what is found instead."""
        is_ours = isinstance(excinfo.value, (WrongCaseError, AssertionError))
        if not is_ours and not type(excinfo.value).__module__.startswith("onnx"):
            return super().repr_failure(excinfo)
        return f"{self.case.sentence}\nrow: {self.case.name}\n{excinfo.value}"

    def reportinfo(self):
        """Return the line of the row."""
        return self.path, self.case.line - 1, self.case.title


class WrongCaseError(Exception):
    """What a case claims does not hold."""
