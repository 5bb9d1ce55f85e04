"""onnx's shape inference of single nodes, in a process of its own because it can crash.

A LayerNormalization whose axis is out of all bounds ends the process that asks (onnx 1.23), and so does a
Split with too few parts. The process starts with the first question and serves for all that follow; where it
dies, the answer is that nothing is known, and the next question starts another.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

REMEMBERED = 4096
"""So many answers are kept: the layers of a network ask the same again and again."""

Pairs = tuple[tuple[str, bytes], ...]
"""Serialised messages by name."""


@dataclass(frozen=True, slots=True)
class Question:
    """A node as one of a schema's version, with the types of what it reads and the small values among it."""

    node: bytes
    domain: str
    version: int
    types: Pairs
    data: Pairs
    imports: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=REMEMBERED)
def ask(question: Question) -> Mapping[str, onnx.TypeProto]:
    """The types of the node's outputs by name; none where onnx cannot say, or dies of the question."""
    asked = {
        "node": question.node,
        "domain": question.domain,
        "version": question.version,
        "types": dict(question.types),
        "data": dict(question.data),
        "imports": dict(question.imports),
    }
    found = _APART.answer(asked)
    return {name: onnx.TypeProto.FromString(kind) for name, kind in found.items()}


class _Apart:
    """The process, which starts when it is needed, and the pipe to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def answer(self, question: Mapping[str, object]) -> Mapping[str, bytes]:
        """Asks, and waits; nothing is known where the process dies of it."""
        with self._lock:
            process = self._started()
            if process.stdin is None or process.stdout is None:
                return {}
            try:
                pickle.dump(question, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.end()
                return {}

    def _started(self) -> subprocess.Popen[bytes]:
        """The process; another one after a fork, which must not share the pipe."""
        if self._process is None or self._owner != os.getpid():
            self._process, self._owner = _start(), os.getpid()
            atexit.register(self.end)
        return self._process

    def end(self) -> None:
        """Ends the process, if there is one and it is ours."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None
        atexit.unregister(self.end)


def _start() -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("inference_child.py")
    return subprocess.Popen(
        [sys.executable, "-P", str(script)],  # -P: our modules are not to be found under their short names
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


_APART = _Apart()
