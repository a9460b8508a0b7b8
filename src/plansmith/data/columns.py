"""Which column holds what: as the spec says, else by the names that columns usually have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plansmith.config.data import IMAGE, LABEL, ROLES, TEXT, TEXT_PAIR
from plansmith.errors import UsageError

# Two texts that belong together, then a single one, as the data sets of the hub name them.
_PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("text1", "text2"),
    ("premise", "hypothesis"),
    ("question", "context"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "passage"),
    ("query", "document"),
    ("anchor", "positive"),
)
_TEXTS = (
    *("text", "sentence", "sentence1", "sentence_1", "content", "review", "document", "query", "question", "premise"),
    *("tokens", "words", "title", "utterance", "tweet", "article", "body", "comment", "prompt"),
)
_IMAGES = ("image", "img", "images", "image_path", "file_name", "filename", "file_path", "filepath", "path", "file")
_LABELS = (
    *("label", "labels", "target", "targets", "score", "similarity_score", "similarity", "class", "category"),
    *("answers", "answer", "ner_tags", "tags", "pos_tags", "fine_label", "coarse_label", "y"),
)


@dataclass(frozen=True)
class Takes:
    """What a model can be fed with.

    Args:
        roles: of text, text_pair and image, what its own tokenizer or processor takes.
        inputs: the names of its inputs, the first being the main one.
        optional: inputs that can be made from the others, such as the mask of padding.
    """

    roles: tuple[str, ...]
    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()


def choose_columns(columns: Sequence[str], given: Mapping[str, str], takes: Takes, name: str) -> dict[str, str]:
    """The column of every role and input that the data have.

    Args:
        columns: those there are.
        given: what the spec says: role or input to column.
        takes: what the model can be fed with.
        name: of the data, for errors.

    Raises:
        UsageError: a role or column that there is not, or nothing to feed the model with.
    """
    _require_known(columns, given, takes, name)
    free = [c for c in columns if c not in takes.inputs]
    label = {LABEL: given[LABEL]} if LABEL in given else _first(LABEL, _LABELS, free)
    chosen = {role: column for role, column in given.items() if role != LABEL}
    left = [c for c in columns if c not in label.values()]
    chosen = chosen or _inputs(left, takes) or _usual(left, takes)
    if not chosen:
        raise UsageError(
            f"data: none of the columns of {name} is known to hold {_wanted(takes)}: it has {', '.join(columns)}",
            remedy=_example(left or columns, takes),
        )
    missing = [i for i in takes.inputs if i not in {*chosen, *takes.optional}] if _is_direct(chosen, takes) else []
    if missing:
        raise UsageError(
            f"data: {name} has no column for the input {', '.join(missing)}: it has {', '.join(columns)}",
            remedy="name it after the input, or say which it is under `columns`",
        )
    return chosen | {role: column for role, column in label.items() if column not in chosen.values()}


def _require_known(columns: Sequence[str], given: Mapping[str, str], takes: Takes, name: str) -> None:
    able = (*takes.roles, *takes.inputs, LABEL)
    for role, column in given.items():
        if role not in able:
            remedy = f"under `columns`, write one of {', '.join(dict.fromkeys(able))} before the colon"
            words = f"the model takes no {role}" if role in ROLES else f"the model has no input {role!r}"
            raise UsageError(f"data: columns: {words}", remedy=remedy)
        if column not in columns:
            raise UsageError(
                f"data: columns: {name} has no column {column!r} for {role}", remedy=f"it has {', '.join(columns)}"
            )
    if TEXT_PAIR in given and TEXT not in given:
        raise UsageError("data: columns: a text_pair needs a text beside it", remedy="say which column is the text")
    if given and not given.keys() - {LABEL}:
        return
    if given and _is_direct(given, takes) and set(given) & set(ROLES[:3]):
        raise UsageError(
            "data: columns: give either texts and images or the values of inputs, not both", remedy="leave one out"
        )


def _is_direct(chosen: Mapping[str, str], takes: Takes) -> bool:
    return any(role in takes.inputs for role in chosen)


def _inputs(columns: Sequence[str], takes: Takes) -> dict[str, str]:
    """Columns that are named as the model's inputs, if one of those that it needs is among them."""
    found = {name: name for name in takes.inputs if name in columns}
    return found if found.keys() - set(takes.optional) else {}


def _usual(columns: Sequence[str], takes: Takes) -> dict[str, str]:
    """By the usual names; a single column needs none."""
    by_name = {column.casefold(): column for column in columns}
    if TEXT_PAIR in takes.roles:
        pair = next((p for p in _PAIRS if set(p) <= by_name.keys()), None)
        if pair:
            return {TEXT: by_name[pair[0]], TEXT_PAIR: by_name[pair[1]]}
    main = next((role for role in (TEXT, IMAGE) if role in takes.roles), "")
    found = _first(main, _TEXTS if main == TEXT else _IMAGES, columns) if main else {}
    needed = [name for name in takes.inputs if name not in takes.optional]
    if not found and len(columns) == 1 and (main or len(needed) == 1):
        found = {main or needed[0]: columns[0]}
    return found


def _first(role: str, names: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    by_name = {column.casefold(): column for column in columns}
    return next(({role: by_name[n]} for n in names if n in by_name), {})


def _wanted(takes: Takes) -> str:
    """What was looked for, in words."""
    if TEXT in takes.roles:
        pairs = ", ".join(" + ".join(pair) for pair in _PAIRS[1:5])
        return f"text ({', '.join(_TEXTS[:8])}, …) or two texts ({pairs}, …)"
    if IMAGE in takes.roles:
        return f"images ({', '.join(_IMAGES[:5])}, …)"
    return f"the model's input {' and '.join(n for n in takes.inputs if n not in takes.optional)}"


def _example(columns: Sequence[str], takes: Takes) -> str:
    role = next(iter((*takes.roles, *takes.inputs)), "input")
    column = next((c for c in columns if c not in takes.inputs), columns[0])
    return f"say which it is in the spec:\n  data:\n    columns: {{{role}: {column}}}"
