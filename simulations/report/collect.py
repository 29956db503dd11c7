"""The tidy tables of a study on disk, written whole or not at all."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import pandas as pd

from simulations.report.study_data import Study

# Of use inside the report only: what they say is in label and in the columns of what varies.
_INTERNAL = ["series", "setting", "private"]


def write_atomically(path: Path, content: bytes) -> Path:
    """Write a file so that a reader finds the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        # mkstemp makes files that only their owner reads; a report is to be shared.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_tidy_tables(study: Study) -> list[Path]:
    """Write ``rounds`` and ``summary`` of all finished runs, as parquet and as CSV."""
    written = []
    for name, frame, key in (
        ("rounds", study.rounds, ["run", "round"]),
        ("summary", study.summary, ["run"]),
    ):
        tidy = frame.drop(columns=_INTERNAL, errors="ignore").drop_duplicates(key).reset_index(drop=True)
        written.append(write_atomically(study.directory / f"{name}.parquet", _parquet(tidy)))
        written.append(write_atomically(study.directory / f"{name}.csv", tidy.to_csv(index=False).encode()))
    return written


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
