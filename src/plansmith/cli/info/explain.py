"""`plansmith explain`: the pages of the reference, in the terminal."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

_REFERENCE = Path(__file__).parents[2] / "reference"
_SPEC_PAGES = ("spec.md", "triton-options.md")
_WHOLE_SPEC = "A model"
_ROW = re.compile(r"^\| `(?P<key>[^`]+)` \| (?P<takes>.*?) \| (?P<default>.*?) \| (?P<what>.*) \|$", re.MULTILINE)


class _Topic(NamedTuple):
    """What can be explained.

    Attributes:
        page: the page that has it, in docs/.
        text: what it says, as Markdown.
    """

    page: str
    text: str


def _complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del ctx, param
    return [CompletionItem(name) for name in sorted(_topics()) if name.startswith(incomplete)]


@click.command("explain", short_help="Explain an exit code, a finding's rule or a key of a spec.")
@click.argument("topic", shell_complete=_complete_topic)
@click.option("--json", "as_json", is_flag=True, help="Print its page and its text, as Markdown, as JSON.")
def explain_command(topic: str, *, as_json: bool) -> None:
    """Explain an exit code, a rule that `plansmith check` names, or a key of a spec, as the reference does.

    \b
    plansmith explain 5                        # exit code 5, with the messages that end so
    plansmith explain config.dims              # a rule: what, an example, the remedy, the source
    plansmith explain pipeline.top_k           # a key of a spec
    """
    from plansmith.errors import UsageError

    topics = _topics()
    if topic not in topics:
        near = difflib.get_close_matches(topic, topics, n=1)
        raise UsageError(
            f"there is no exit code, rule or key {topic!r}",
            remedy=f"did you mean {near[0]}?" if near else "plansmith check --rules lists rules, plansmith schema keys",
        )
    page, text = topics[topic]
    if as_json:
        click.echo(json.dumps({"topic": topic, "page": page, "text": text}))
        return
    from rich.markdown import Markdown

    from plansmith.cli.output import open_console

    console = open_console()
    with console.capture() as shown:
        console.print(Markdown(text), soft_wrap=False)
    click.echo_via_pager(shown.get(), color=console.is_terminal)


def _topics() -> Mapping[str, _Topic]:
    """All that can be explained, by what is typed for it."""
    codes = {path.stem: _Topic(_name(path), _body(path)) for path in (_REFERENCE / "errors").glob("*.md")}
    rules = {
        title: _Topic(f"{_name(path)}#{title.replace('.', '')}", f"## {title}\n\n{text}")
        for path in sorted((_REFERENCE / "rules").glob("*.md"))
        for title, text in _sections(path)
    }
    return {**_keys(), **rules, **codes}


def _keys() -> dict[str, _Topic]:
    """The keys of a spec; one that holds others with all of them."""
    keys: dict[str, _Topic] = {}
    groups: dict[str, str] = {}
    for path in (_REFERENCE / name for name in _SPEC_PAGES):
        for title, text in _sections(path):
            above = "" if title == _WHOLE_SPEC else f"{title}."
            groups[title] = text
            for row in _ROW.finditer(text):
                facts: dict[str, Any] = {name: fact.replace(r"\|", "|") for name, fact in row.groupdict().items()}
                default = f"; default {facts['default']}" if facts["default"] else ""
                said = f"## {above}{row['key']}\n\n{facts['what']}\n\nTakes {facts['takes']}{default}."
                keys[f"{above}{row['key']}"] = _Topic(f"{_name(path)}#{title.lower().replace(' ', '-')}", said)
    return {
        key: topic._replace(text=f"{topic.text}\n\n{groups[key]}") if key in groups else topic
        for key, topic in keys.items()
    }


def _sections(path: Path) -> Iterator[tuple[str, str]]:
    """The sections of a page: title and text."""
    _, *parts = re.split(r"^## ", _body(path), flags=re.MULTILINE)
    for part in parts:
        title, _, text = part.partition("\n")
        yield title.strip(), text.strip()


def _body(path: Path) -> str:
    """A page without the notice of the generator."""
    return path.read_text(encoding="utf-8").partition("-->\n")[2].strip()


def _name(path: Path) -> str:
    return f"reference/{path.relative_to(_REFERENCE).as_posix()}"
