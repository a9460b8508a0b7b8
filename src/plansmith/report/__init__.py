"""One self-contained HTML page about a release, or about a compile that the gate refused; and the same as JSON."""

from plansmith.report.facts import ReportFacts, facts_of, unfinished
from plansmith.report.render import REPORT_FILE, as_json, render, write

__all__ = ["REPORT_FILE", "ReportFacts", "as_json", "facts_of", "render", "unfinished", "write"]
