"""YAML loading: the values of a text that others may have written, bounded however its aliases multiply them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MOST_VALUES = 200_000
"""Of a document with every alias written out; those that plansmith comes with have some thousands."""


def load_yaml(text: str | bytes) -> Any:
    """Load a YAML document.

    Raises:
        yaml.YAMLError: it is none.
        ValueError: it has a value that Python does not, such as the 31st of June; is nested too deeply, or grows
            by its aliases.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        tree = loader.get_single_node()
        require_bounded(tree)
        return loader.construct_document(tree) if tree is not None else None
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def require_bounded(tree: yaml.Node | None) -> None:
    """Require that a document with all aliases written out is of a usual size.

    Raises:
        ValueError: it is not; a value that holds itself never is.
    """
    if tree is not None:
        _count(tree, {})


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of values in a node; in `counts`, by node, those that were counted already."""
    if id(node) not in counts:
        counts[id(node)] = MOST_VALUES  # as long as it is being counted: of a value that holds itself
        parts = node.value if isinstance(node.value, list) else ()
        inner = chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts)
        counts[id(node)] = 1 + sum(_count(part, counts) for part in inner)
        if counts[id(node)] > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values, with its aliases (*name) written out")
    return counts[id(node)]
