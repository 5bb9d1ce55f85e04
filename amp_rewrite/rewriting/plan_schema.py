"""What a saved plan consists of, field by field; what is otherwise is named by its path."""

from __future__ import annotations

from amp_rewrite.policy.options import IOTypes
from amp_rewrite.rewriting import decision_records, form_records, json_fields
from amp_rewrite.rewriting.json_fields import (
    COUNT,
    FLAG,
    LIST,
    OBJECT,
    TEXT,
    TEXTS,
    JsonFields,
    one_of,
    or_null,
)
from amp_rewrite.rewriting.plan import Storage

FORMAT = 4
"""The version of the file format; a file of another version is refused."""


def check(content: object) -> None:
    """ValueError, which names the field by its path, where content is not a valid plan."""
    if not isinstance(content, dict):
        raise ValueError("the top level is not an object")
    if "format" not in content:
        raise ValueError("it has no 'format'")
    if content["format"] != FORMAT:
        version = content["format"] if isinstance(content["format"], int) else "another"
        raise ValueError(f"format {version}, and {FORMAT} is read here")
    json_fields.check("", content, _TOP)
    json_fields.check("form.", content["form"], form_records.FIELDS)
    unit = json_fields.position(len(content["units"]))
    json_fields.check_rows("units", content["units"], {**_UNIT, **decision_records.paint_fields(unit)})
    json_fields.check_rows("casts", content["casts"], {**_CAST, **decision_records.cast_site_fields(unit)})
    json_fields.check_rows("stored", content["stored"], _STORED)


_TOP: JsonFields = {
    "model": TEXT,
    "half": TEXT,
    "target": TEXT,
    "io": one_of(IOTypes),
    "keep_io": TEXTS,
    "keep_functions": FLAG,
    "form": OBJECT,
    "units": LIST,
    "casts": LIST,
    "stored": LIST,
    "assumptions": TEXTS,
}
_UNIT: JsonFields = {
    "node": or_null(TEXT),
    "operator": TEXT,
    "variable": TEXT,
    "defs": TEXTS,
    "flops": or_null(COUNT),
    **decision_records.ENTRY_FIELDS,
}
_CAST: JsonFields = {"value": or_null(TEXT), "to": TEXT, "uses": COUNT}
_STORED: JsonFields = {"value": or_null(TEXT), "form": one_of(Storage), "saturates": COUNT, "flushes": COUNT}
