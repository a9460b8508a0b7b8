"""Report rendering: the HTML page from its template, and the JSON document."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith import formatting
from plansmith.errors import RepositoryError
from plansmith.report import layers, numbers, tradeoff
from plansmith.report.accuracy import agreement_row, metric_plot, shape_tables
from plansmith.report.layers import high_precision_groups, layer_chart
from plansmith.report.plans import plans_of
from plansmith.report.provenance import groups_of, row_lists
from plansmith.report.templating import template_environment
from plansmith.report.tradeoff import frontier_of
from plansmith.report.verdict import ReportFacts, verdict_of
from plansmith.system.files import make_folder, write_file

if TYPE_CHECKING:
    from jinja2 import Template


_TEMPLATE = "report.html"


def render(facts: ReportFacts) -> str:
    """Render the HTML page: self-contained, without network access or scripts."""
    import yaml

    lowered, validation = facts.lowered, facts.validation
    evaluation = validation.evaluation if validation else None
    recipe = lowered.recipe if lowered else None
    return _template().render(
        plansmith=facts.plansmith,
        facts=facts,
        verdict=verdict_of(facts),
        tables=shape_tables(facts),
        evaluation=evaluation,
        agreements=[agreement_row(a, validation.tolerances[a.output]) for a in evaluation.agreements]
        if validation and evaluation
        else [],
        metrics=[metric_plot(metric) for metric in evaluation.metrics] if evaluation else [],
        plans=plans_of(facts),
        layers=layer_chart(lowered.layers) if lowered else None,
        recipe=recipe,
        kept=high_precision_groups(recipe.kept) if recipe else (),
        frontier=frontier_of(facts.trials),
        groups=groups_of(facts),
        row_lists=row_lists(facts.data),
        spec=yaml.safe_dump(facts.spec, sort_keys=False, allow_unicode=True),
        chart=layers,
        plot=tradeoff,
    )


def renumber(page: str, version: int, number: int) -> str:
    """Return a rendered page with another version number, as a store numbers anew what it has; needs no Jinja2.

    Raises:
        RepositoryError: the page does not show the version where the template does.
    """
    for before, after in ((", ", "</title>"), ("<span>", "</span>")):
        shown = f"{before}version {version}{after}"
        if shown not in page:
            raise RepositoryError(
                f"the report of version {version} does not show that number, and cannot be renumbered",
                remedy="compile the model again and publish that version",
            )
        page = page.replace(shown, f"{before}version {number}{after}", 1)
    return page


def as_json(facts: ReportFacts) -> dict[str, Any]:
    """Return the verdict first, then all contents of the page, as JSON values."""
    nearest = verdict_of(facts).nearest
    return {
        "verdict": "passed" if facts.passed else "failed",
        "failures": facts.failures(),
        "nearest_to_a_limit": nearest
        and {"what": nearest.quantity, "where": nearest.where, "used": _finite(nearest.used)},
        **facts.model_dump(mode="json"),
    }


def _finite(number: float) -> float | None:
    """Return a number that JSON can represent."""
    return number if math.isfinite(number) else None


def write(facts: ReportFacts, path: Path) -> None:
    """Write the page as one file atomically, replacing an existing one.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    make_folder(path.parent)
    write_file(path, render(facts), replace=True)


@cache
def _template() -> Template:
    environment = template_environment()
    environment.filters |= {"cosine": numbers.cosine, "count": formatting.count}
    return environment.get_template(_TEMPLATE)
