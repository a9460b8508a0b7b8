"""Reports are shown as they lie in artifacts and releases, and nothing else is ever read for an address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.records.release import REPORT_FILE
from plansmith.triggers.pages import query_results

from .site import Site, link, links

SECRET = "the password is swordfish"


def refused(site: Site, log: Path) -> None:
    """Note a compile that was refused and left a report."""
    site.compiled("ranker", failed=True, log=str(log))


def test_version_report_shown_without_script(site: Site) -> None:
    """The report of a version is shown and may run nothing."""
    site.model("ranker", versions=2)
    address = link(site.page("/models/ranker"), "/reports/")
    answer = site.ask(address)
    assert (answer.status, answer.body) == (200, b"<!DOCTYPE html><title>ranker 2</title>")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "form-action 'none'; sandbox" in policy
    assert "script" not in policy


def test_refused_compile_report_shown(site: Site) -> None:
    """The report that a refused compile left is shown."""
    site.model("ranker")
    left = site.place.folder / "artifacts" / "logs" / "ranker-report.html"
    left.parent.mkdir(exist_ok=True)
    left.write_text("refused")
    refused(site, left)
    address = link(site.page("/models/ranker"), "/runs/1")
    assert site.ask(address).body == b"refused"


def test_non_report_neither_linked_nor_shown(site: Site) -> None:
    """What is no report is neither linked nor shown."""
    release = site.model("ranker")
    artifacts = site.place.folder / "artifacts"
    outside = site.place.folder / "outside.html"
    outside.write_text(SECRET)
    log = artifacts / "worker.log"
    log.write_text(SECRET)
    led_out = artifacts / "led-out.html"
    led_out.symlink_to(outside)
    folder = artifacts / "folder.html"
    folder.mkdir()
    for path in (outside, log, led_out, folder, artifacts / "gone.html", Path("../outside.html")):
        refused(site, path)
    site.compiled("other", log=str(outside))
    (release / REPORT_FILE).unlink()
    (release / REPORT_FILE).symlink_to(outside)
    page = site.page("/models/ranker")
    assert not [address for address in links(page) if address.startswith("/reports/")]
    key = page.all("section")[0]["id"]
    addresses = [f"/reports/{key}/1", *(f"/reports/{key}/runs/{number}" for number in range(1, 9))]
    assert [site.page(address, 404).text().count("no such report") for address in addresses] == [1] * len(addresses)


WAYS_OUT = (
    "/reports/KEY/../../../outside.html",
    "/reports/KEY/..%2f..%2foutside.html",
    "/reports/KEY/%2e%2e",
    "/reports/KEY//1",
    "/reports/KEY/1/",
    "/reports/KEY/+1",
    "/reports/KEY/1%00",
    "/reports/KEY/1%0a",
    "/reports/KEY/①",
    "/reports/KEY/999999999",
    "/reports/KEY/" + "9" * 5000,
    "/reports/KEY/runs/" + "9" * 5000,
    "/reports/KEY/runs/..",
    "/reports/KEY/runs/-1",
    "/reports/../KEY/1",
    "/reports/%2e%2e/1",
    "/reports//etc/passwd",
    "/reports/" + "a" * 12 + "/1",
    "/models/..%2f..%2foutside",
    "/models/../outside.html",
    "/style.css/../outside.html",
    "/outside.html",
)


@pytest.mark.parametrize("way", WAYS_OUT, ids=lambda way: way[:40])
def test_addresses_stay_within_reports(way: str, site: Site) -> None:
    """No address leads out of the reports."""
    site.model("ranker")
    (site.place.folder / "outside.html").write_text(SECRET)
    key = site.page("/models/ranker").all("section")[0]["id"]
    assert site.ask(f"/reports/{key}/1").status == 200
    answer = site.ask(way.replace("KEY", key))
    assert answer.status == 404
    assert SECRET not in answer.body.decode()


def test_replaced_report_not_read(tmp_path: Path) -> None:
    """A report that became something else is not read."""
    pipe, link_to_file, large = tmp_path / "pipe", tmp_path / "link", tmp_path / "large"
    os.mkfifo(pipe)
    link_to_file.symlink_to(__file__)
    with large.open("wb") as stream:
        stream.truncate(1 << 40)
    for path in (pipe, link_to_file, large, tmp_path, tmp_path / "gone"):
        assert query_results.read_report(path) is None
