"""Golden results: what a commit makes of the shared models, and how another commit differs from that.

    python tools/goldens.py FOLDER --update --checkout COMMIT  # record a commit
    python tools/goldens.py FOLDER                             # compare this checkout (exit code 1: differs)
    python tools/goldens.py FOLDER --only 'mamba.*|cases/8.*' --settings float16,observed
    python tools/goldens.py FOLDER --verdicts                  # the same of what the command concludes

The models are those of `../shared`: its index, `overflow/` and `cases/`. A process for each rewrites and
explains it in all settings (golden_results.py). FOLDER/results/MODEL/SETTING.json has hashes of the graph, of
the types of values and of what is stored, without our own metadata; counts; the decisions; and what `explain`
prints. FOLDER/verdicts has what the command concludes, on synthetic inputs and on the model's own. An error,
a crash and a time limit are results as well. `made_from.txt` names the commit, and the versions of packages.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from golden_results import HASHES, MODES, SECONDS, Record, entries

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 2
SHOWN = 8
"""The lines of a difference that are printed."""


def run(asked: argparse.Namespace, names: list[str], results: Path) -> None:
    """Make all results, PROCESSES models at a time."""

    def one(name: str) -> tuple[float, str]:
        start, folder = time.monotonic(), results / name
        folder.mkdir(parents=True)
        ended, settings = _child(asked, name, folder), asked.settings
        missing = [each for each in settings if not (folder / f"{each}.json").exists()]
        for each in missing:
            failure = ended if each == missing[0] else f"not tried, after {missing[0]}"
            (folder / f"{each}.json").write_text(json.dumps({"failure": failure}))
        return time.monotonic() - start, name

    with ThreadPoolExecutor(PROCESSES) as pool:
        took = sorted(pool.map(one, reversed(names)), reverse=True)  # cases first: one never ends
    total = sum(seconds for seconds, _ in took) / PROCESSES
    slowest = ", ".join(f"{name} {seconds:.0f} s" for seconds, name in took[:5])
    print(f"{len(names)} models in {total:.0f} s; the slowest: {slowest}", flush=True)


def _child(asked: argparse.Namespace, name: str, folder: Path) -> str:
    """Run the process of a model; return how it ended."""
    script = Path(__file__).with_name("golden_results.py")
    words = [script, asked.mode, name, ",".join(asked.settings), folder, asked.shared, asked.checkout]
    environment = os.environ | {"PYTHONPATH": str(asked.checkout), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as said:
        line = [sys.executable, "-W", "ignore", *map(str, words)]
        streams = {"stdout": said, "stderr": said, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(line, cwd=scratch, env=environment, start_new_session=True, **streams)
        code = process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever it started
        said.seek(0)
        last = said.read().strip().split("\n")[-1]
    is_late = code == -signal.SIGALRM
    return f"no result within {SECONDS[asked.mode]} s" if is_late else f"ended with {code}: {last}"


def compare(old: Path, new: Path, names: list[str], settings: list[str]) -> bool:
    """Print how results differ, by model; return whether any does."""
    totals, moved, same = Counter[str](), Counter[str](), 0
    for name in names:
        changes: dict[str, list[str]] = {}
        for setting in settings:
            was, now = (_read(folder / name / f"{setting}.json") for folder in (old, new))
            parts = [part for part in {**was, **now} if was.get(part) != now.get(part)]
            parts = ["failure"] if "failure" in parts else parts
            totals.update(parts)
            same += not parts
            for part in parts:
                change = "" if part in HASHES else _change(was.get(part), now.get(part))
                changes.setdefault(f"{part}\0{change}", []).append(setting)
            moved.update(_moved(was, now))
        if changes:
            print(name)
        for change, where in changes.items():
            print("  " + change.replace("\0", f" ({', '.join(where)}) ").rstrip())
    counts = ", ".join(f"{part} {count}" for part, count in totals.most_common())
    print(f"{same} of {len(names) * len(settings)} results are identical; different: {counts or 'none'}")
    if moved:
        print("units:", ", ".join(f"{move} {count}" for move, count in moved.items()))
    return bool(totals)


def _moved(was: Record, now: Record) -> Iterator[str]:
    """How the precision of units changes that both results have."""
    before, after = (
        {(node, variable): precision for node, variable, precision, *_ in record.get("decisions", ())}
        for record in (was, now)
    )
    for unit in before.keys() & after.keys():
        if before[unit] != after[unit]:
            yield f"{before[unit]} -> {after[unit]}"


def _read(file: Path) -> Record:
    return json.loads(file.read_text()) if file.exists() else {"failure": "not recorded"}


def _change(old: Any, new: Any) -> str:
    """A difference in words: of single values both, else the lines that went and came."""
    if not any(isinstance(each, list | dict) or "\n" in str(each) for each in (old, new)):
        return f"{old} -> {new}"
    lines = difflib.unified_diff(_lines(old), _lines(new), lineterm="", n=0)
    changed = [line[:200] for line in list(lines)[2:] if not line.startswith("@@")]
    counts = f"-{sum(line[0] == '-' for line in changed)} +{sum(line[0] == '+' for line in changed)}"
    rest = [f"... {len(changed) - SHOWN} more"] * (len(changed) > SHOWN)
    return "\n      ".join([counts, *changed[:SHOWN], *rest])


def _lines(part: Any) -> list[str]:
    if isinstance(part, dict):
        return [f"{name} {value}" for name, value in part.items()]
    if isinstance(part, list):
        return [" | ".join(each) if isinstance(each, list) else each for each in part]
    return [] if part is None else str(part).splitlines()


def compare_times(old: Path, new: Path, names: list[str], settings: list[str]) -> None:
    """Print the number of results with each verdict, and the geometric mean of predicted times."""
    for setting in settings:
        pairs = [[_read(folder / name / f"{setting}.json") for folder in (old, new)] for name in names]
        for which, side in zip(("before", "now"), zip(*pairs, strict=True), strict=True):
            counts = Counter(each.get("verdict", "no result") for each in side)
            print(f"{setting} {which}:", ", ".join(f"{word} {counts[word]}" for word in sorted(counts)))
        times = [[each.get("microseconds") for each in pair] for pair in pairs]
        logs = [math.log(now / was) for was, now in times if was and now]
        mean = math.exp(sum(logs) / max(len(logs), 1))
        print(f"{setting}: {mean:.4f} times the predicted time (geometric mean of {len(logs)} models)")


@contextlib.contextmanager
def checkout(asked: str) -> Iterator[tuple[Path, str]]:
    """Yield the folder of a checkout, and its commit; a commit is unpacked for as long as that."""
    if Path(asked).is_dir():
        yield Path(asked).resolve(), _git(Path(asked), "log", "-1", "--format=%h %s").decode()
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=_git(ROOT, "archive", asked), check=True)
        yield Path(folder).resolve(), _git(ROOT, "log", "-1", "--format=%h %s", asked).decode()


def _git(folder: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True).stdout


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where golden results are recorded")
    parser.add_argument("--update", action="store_true", help="record the results there")
    parser.add_argument("--verdicts", dest="mode", action="store_const", const="verdicts", default="results")
    parser.add_argument("--only", default=".*", help="a regular expression for whole names of models")
    parser.add_argument("--settings", help="some of them, with commas between")
    parser.add_argument("--checkout", default=str(ROOT), help="a commit, or the folder of another checkout")
    parser.add_argument("--shared", default=ROOT.parent / "shared", type=_folder, help="where the models are")
    asked = parser.parse_args()
    known = MODES[asked.mode]
    asked.is_whole = asked.only == ".*" and asked.settings is None
    asked.settings = asked.settings.split(",") if asked.settings else known
    if not {*asked.settings} <= {*known}:
        parser.error(f"--settings takes some of {','.join(known)}")
    return asked


def _record(new: Path, old: Path, asked: argparse.Namespace, made_from: str) -> None:
    """Put results in the place of others; those of some models beside the rest."""
    if asked.is_whole:
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(new, old, dirs_exist_ok=True)
    part = "" if asked.is_whole else f"{asked.only} in {','.join(asked.settings)}: "
    with (old / "made_from.txt").open("a") as file:
        file.write(f"{part}{made_from}\n")


def _folder(text: str) -> Path:
    return Path(text).resolve()


def main() -> int:
    """Record, or compare; return 1 where results differ."""
    asked = arguments()
    names = [name for name in entries(asked.shared) if re.fullmatch(asked.only, name)]
    old = asked.folder / asked.mode
    if not (asked.update or old.is_dir()):
        raise SystemExit(f"{old} is not there; record it with --update, and --checkout for another commit")
    with checkout(asked.checkout) as (asked.checkout, commit), tempfile.TemporaryDirectory() as new:
        versions = " ".join(f"{each} {version(each)}" for each in ("onnx", "onnx-ir", "onnxruntime", "numpy"))
        made_from = f"{commit.strip()} ({versions})"
        print(made_from, flush=True)
        run(asked, names, Path(new))
        if asked.update:
            _record(Path(new), old, asked, made_from)
            return 0
        print("against", (old / "made_from.txt").read_text().strip())
        gone = {str(file.parent.relative_to(old)) for file in old.rglob("*.json")} if asked.is_whole else ()
        differs = compare(old, Path(new), sorted({*names, *gone}), asked.settings)
        if asked.mode == "verdicts":
            compare_times(old, Path(new), names, asked.settings)
        return int(differs)


if __name__ == "__main__":
    sys.exit(main())
