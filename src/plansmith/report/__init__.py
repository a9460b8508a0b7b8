"""HTML report on a release, or on a compile that the accuracy gate refused; one self-contained page, and JSON."""

from plansmith.report.render import REPORT_FILE, as_json, render, renumber, write
from plansmith.report.verdict import ReportFacts, facts_of, unfinished

__all__ = ["REPORT_FILE", "ReportFacts", "as_json", "facts_of", "render", "renumber", "unfinished", "write"]
