"""A fork beside a thread that imports what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import FORK_BESIDE_THREADS

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("module", ["amp_rewrite.pipeline", "amp_rewrite.colouring.classification"])
def test_a_fork_waits_for_imports(module):
    """The child of a fork in the midst of another thread's first rewrite can rewrite as well."""
    done = subprocess.run(
        [sys.executable, "-W", FORK_BESIDE_THREADS, "-c", FORKS, module],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "float16\n", "")


FORKS = """
import logging, os, signal, sys, threading, time
import amp_rewrite
import onnx.parser

begun = threading.Event()

class Slow:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            begun.set()
            time.sleep(0.3)
            logging.getLogger(name)  # which takes a lock that a fork takes as well

MODEL = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) { y = MatMul (x, w) }''')
rewrite = lambda: amp_rewrite.rewrite(MODEL).report.half
sys.meta_path.insert(0, Slow())
other = threading.Thread(target=rewrite)
other.start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(50)
    print(rewrite(), flush=True)
    os._exit(0)
other.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Forks while another thread imports a module, which takes a while."""
