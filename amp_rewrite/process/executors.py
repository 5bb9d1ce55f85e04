"""Work in other processes: an executor by name, and the results of their tasks.

An executor is any `concurrent.futures.Executor` whose workers can import amp_rewrite and see the same files.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from amp_rewrite.errors import AmpRewriteError, MissingPackageError, OptionError, WorkerError
from amp_rewrite.process import interruptible

T = TypeVar("T")

CONNECTING = 10.0
"""The seconds within which a scheduler must answer."""


@contextlib.contextmanager
def named(text: str, by: str = "executor") -> Generator[Executor]:
    """Open the executor of a name, `dask://HOST:PORT`, the address of a scheduler; it ends with the context,
    which cancels tasks that have not begun.

    Raises OptionError for another name from the flag or argument `by`, or if no scheduler answers, and
    MissingPackageError without `distributed`.
    """
    address = _DASK.fullmatch(text)
    if not address:
        remedy = "write it as in dask://127.0.0.1:8786"
        raise OptionError(f"{by} {text} names no executor", remedy=remedy)
    with _connected(address[1]) as client:
        executor: Executor = client.get_executor(pure=False)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)  # cancels in Dask, which has no `cancel_futures`


_DASK = re.compile(r"dask://([^/\s]+:\d{1,5})")


def results(executor: Executor, work: Callable[..., T], tasks: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Yield the result of `work` for each task, in order; at most WAITING tasks are submitted ahead.

    Raises AmpRewriteError as `work` does, and WorkerError for any other failure; tasks that have not begun
    are then cancelled.
    """
    waiting: list[Future[T]] = []
    iterator = iter(tasks)
    try:
        while True:
            for task in itertools.islice(iterator, WAITING - len(waiting)):
                try:
                    waiting.append(executor.submit(work, *task))
                except Exception as error:  # it was shut down, or broke, or cannot pickle
                    raise _broken(error) from error
            if not waiting:
                return
            yield result(waiting.pop(0))
    finally:
        for future in waiting:
            future.cancel()


WAITING = 32
"""The number of tasks with an executor at a time: their arguments are in memory."""


def result(future: Future[T]) -> T:
    """Return the result of a future; raises as `results`, and TimeLimitError."""
    try:
        return interruptible.call(future.result, future.cancel)
    except AmpRewriteError:
        raise
    except Exception as error:  # of the executor's, and faults of the work
        raise _broken(error) from error


def _broken(error: Exception) -> WorkerError:
    message = str(error).partition("\n")[0]
    problem = f"a worker did not return ({type(error).__name__}{': ' if message else ''}{message})"
    return WorkerError(problem, remedy="look at the memory and the logs of the workers, or use none")


def _connected(address: str) -> Any:
    """Return a client of the scheduler at an address."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise MissingPackageError("distributed", extra="cluster", purpose="a Dask cluster") from error
    try:
        return distributed.Client(f"tcp://{address}", timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        problem = f"no Dask scheduler answers at {address}"
        raise OptionError(problem, remedy="start one with: dask scheduler") from error
