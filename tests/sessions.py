"""onnxruntime in a process of its own: a model that crashes it costs one answer, no test run."""

import contextlib
import os
import pickle
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Ran:
    """What came of a model: its borders and outputs, or a `failure` in words.

    A border is (name, type, shape) as the session says.
    """

    failure: str = ""
    inputs: tuple[tuple[str, str, list], ...] = ()
    outputs: tuple[tuple[str, str, list], ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


class Runtime:
    """A child with onnxruntime's CPU provider, started when needed and again after a crash."""

    def __init__(self):
        self._child = None

    def load(self, model):
        """The borders of a model, given as bytes or as the path of a file."""
        return self._ask(model, None)

    def run(self, model, feeds):
        """The outputs of a model for these inputs."""
        return self._ask(model, feeds)

    def close(self):
        """Ends the child."""
        if self._child is not None:
            self._child.stdin.close()
            self._child.stdout.close()
            self._child.wait()
            self._child = None

    def _ask(self, model, feeds):
        if self._child is None:
            command = [sys.executable, __file__]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        try:
            _send(self._child.stdin, (model, feeds))
            return Ran(**_receive(self._child.stdout))
        except (EOFError, BrokenPipeError):
            return self._crashed()

    def _crashed(self):
        code = self._child.wait()
        self._child.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # what was not sent yet
            self._child.stdin.close()
        self._child = None
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Ran(failure=f"crash: {name}")


def _send(pipe, message):
    data = pickle.dumps(message)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe):
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(pipe.read(_LENGTH.unpack(head)[0]))


def _serve():
    import onnxruntime  # noqa: PLC0415 - only the child needs it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # onnxruntime prints now and then
    while True:
        try:
            model, feeds = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, _answer(onnxruntime, options, model, feeds))


def _answer(onnxruntime, options, model, feeds):
    try:
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        inputs, outputs = (
            tuple((border.name, border.type, border.shape) for border in borders)
            for borders in (session.get_inputs(), session.get_outputs())
        )
        values = {} if feeds is None else _values(session, feeds, [name for name, *_ in outputs])
    except Exception as error:
        return {"failure": " ".join(f"{type(error).__name__}: {error}".split())}
    return {"inputs": inputs, "outputs": outputs, "values": values}


def _values(session, feeds, names):
    return dict(zip(names, session.run(names, feeds), strict=True))


if __name__ == "__main__":
    _serve()
