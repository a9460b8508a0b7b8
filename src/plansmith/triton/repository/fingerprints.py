"""What the newest versions of a repository were made from, noted beside their releases."""

from __future__ import annotations

import json
from pathlib import Path

from plansmith.errors import RepositoryError, first_line
from plansmith.records.fingerprint import Fingerprint
from plansmith.records.model import SCHEMA_VERSION
from plansmith.system.files import fsync_path, make_folder, move_into_place, staging_folder

BASIS_FOLDER = "basis"

_REMEDY = "compile the model again: the note is written anew"


class Fingerprints:
    """One note for each model, `<store>/basis/<model>.json`; whoever writes one holds the model's lock.

    Args:
        store: holds the repository's releases.
    """

    def __init__(self, store: Path) -> None:
        self._folder = store / BASIS_FOLDER
        self._staging = store / "staging"

    def read(self, model: str) -> Fingerprint | None:
        """What the newest version was made from; None where nobody noted it.

        Raises:
            RepositoryError: the note is damaged, or of another version of plansmith.
        """
        file = self._file(model)
        try:
            fields = json.loads(file.read_bytes())
            form = fields["schema_version"]
            if form == SCHEMA_VERSION:
                return Fingerprint.model_validate(fields)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RepositoryError(f"{file} cannot be read: {first_line(error)}", remedy=_REMEDY) from error
        raise RepositoryError(f"{file} has form {form}, and this plansmith reads form {SCHEMA_VERSION}", remedy=_REMEDY)

    def write(self, model: str, basis: Fingerprint) -> None:
        """Note what a version was made from; the note appears whole.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        final = self._file(model)
        make_folder(final.parent)
        with staging_folder(self._staging) as staged:
            (staged / final.name).write_text(basis.model_dump_json(indent=1), encoding="utf-8")
            fsync_path(staged / final.name)
            move_into_place(staged / final.name, final)

    def _file(self, model: str) -> Path:
        return self._folder / f"{model}.json"
