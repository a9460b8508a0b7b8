"""A store's repository, renewed after an alias was moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plansmith.errors import PlansmithError

if TYPE_CHECKING:
    from plansmith.stores.records import Pointer
    from plansmith.stores.store import Store


def renew_view(store: Store, model: str, alias: str, pointer: Pointer) -> None:
    """Show in a store's repository, if it keeps one, what an alias stands for now.

    Raises:
        PlansmithError: of the kind of what went wrong; it says that the alias was moved, which a person who repeats a
            rollback would move once more.
    """
    from plansmith.stores.repository_view import refresh_view

    try:
        refresh_view(store, model)
    except PlansmithError as error:
        share = f" --share {pointer.share}" if pointer.share is not None else ""
        raise type(error)(
            f"{alias} of {model} is version {pointer.version} now; only the repository in {store.place}, for a Triton "
            f"that reads it there, was not renewed: {error.message}",
            remedy=f"plansmith promote {model}@{pointer.version} {alias}{share} --store {store.place}",
            transient=error.transient,
        ) from error
