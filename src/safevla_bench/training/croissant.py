"""Croissant 1.0 metadata of a data set in Parquet: its files, and what each column holds (mlcommons.org/croissant)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset "
    "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
    "subField transform"
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    **{name: f"cr:{name}" for name in _TERMS.split()},
}
"""Croissant's own, whole: readers warn of any other."""


def describe_croissant(
    name: str, description: str, parts: Mapping[str, tuple[str, pa.Schema]], meanings: Mapping[str, str]
) -> dict[str, object]:
    """Return the JSON-LD of a data set.

    Args:
        name: of the data set.
        description: one text about it.
        parts: name -> pattern of its Parquet files, below the folder of croissant.json, and their columns.
        meanings: column -> what it holds; a key that ends in `.` or `/` is of all columns that begin so.
    """
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": description,
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": f"{part}-files",
                "name": f"{part}-files",
                "encodingFormat": "application/x-parquet",
                "includes": pattern,
            }
            for part, (pattern, _) in parts.items()
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": part,
                "name": part,
                "field": [_describe_field(part, column, meanings) for column in schema],
            }
            for part, (_, schema) in parts.items()
        ],
    }


def _describe_field(part: str, column: pa.Field, meanings: Mapping[str, str]) -> dict[str, Any]:
    is_list = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    is_picture = pa.types.is_struct(column.type)
    extract = {"fileSet": {"@id": f"{part}-files"}, "extract": {"column": column.name}}
    meaning = next((meanings[key] for key in meanings if column.name == key or _is_below(column.name, key)), None)
    return {
        "@type": "cr:Field",
        "@id": f"{part}/{column.name}",
        "name": column.name,
        **({"description": meaning} if meaning else {}),
        "dataType": "sc:ImageObject" if is_picture else _data_type(column.type.value_type if is_list else column.type),
        **({"repeated": True} if is_list else {}),
        "source": {**extract, "transform": {"jsonPath": "bytes"}} if is_picture else extract,
    }


def _is_below(name: str, key: str) -> bool:
    return key[-1] in "./" and name.startswith(key)


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    return "sc:Text" if pa.types.is_string(kind) else "sc:Integer" if pa.types.is_integer(kind) else "sc:Float"
