"""Fetches the libraries that the HTML report carries from the npm registry, by version and integrity hash.

    python tools/vendor.py [--record]

`vendor.json` beside the files says which package, which version, and the registry's hash of its archive;
and for each file that we keep, where it lies in the archive, and its own hash. The files are written as they
are in the archive. What has another hash than the recorded one is an error; `--record` writes the hashes of
the files anew, after a version (and the integrity that `npm view PACKAGE@VERSION dist.integrity` prints) has
been changed. Needs npm.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "amp_rewrite" / "reporting" / "html" / "vendor"
RECORD = FOLDER / "vendor.json"


def fetch(library: dict[str, Any], folder: Path) -> Path:
    """The archive of a package, whose hash is the recorded one."""
    name = f"{library['package']}@{library['version']}"
    command = ["npm", "pack", name, "--silent", "--pack-destination", str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    archive = folder / printed.split()[-1]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != library["integrity"]:
        raise SystemExit(f"{name}: the archive has the hash sha512-{digest}, not the recorded one")
    return archive


def keep(library: dict[str, Any], archive: Path, *, record: bool) -> None:
    """Writes the files that we keep; their hashes are checked, or recorded."""
    with tarfile.open(archive) as opened:
        for name, file in library["files"].items():
            member = opened.extractfile(f"package/{file['from']}")
            if member is None:
                raise SystemExit(f"{archive.name} has no file {file['from']}")
            content = member.read()
            found = hashlib.sha256(content).hexdigest()
            if record:
                file["sha256"] = found
            elif found != file["sha256"]:
                raise SystemExit(f"{name}: has the hash {found}, not the recorded one")
            (FOLDER / name).write_bytes(content)


def main() -> None:
    """Fetches all libraries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the hashes of the files anew")
    record = parser.parse_args().record
    libraries = json.loads(RECORD.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        for library in libraries:
            keep(library, fetch(library, Path(scratch)), record=record)
            sys.stdout.write(f"{library['package']} {library['version']}\n")
    if record:
        RECORD.write_text(json.dumps(libraries, indent=1) + "\n")


if __name__ == "__main__":
    main()
