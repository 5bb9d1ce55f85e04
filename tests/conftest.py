"""What holds for all tests that run here."""

import pytest

pytest_plugins = ["tests.transcripts"]


def pytest_addoption(parser):
    """Adds --update, for tests that are text."""
    parser.addoption("--update", action="store_true", help="write what cases and transcripts say today")


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
