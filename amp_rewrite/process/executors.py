"""Work in other processes: the results of the tasks of an executor.

An executor is any `concurrent.futures.Executor` whose workers can import amp_rewrite and see the same files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from amp_rewrite.errors import AmpRewriteError, WorkerError
from amp_rewrite.process import interruptible

T = TypeVar("T")


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
