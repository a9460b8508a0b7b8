"""What the pages show of a fleet, a model and the inbox, and how they are made."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from plansmith.records.release import SIGNATURE_FILE
from plansmith.steps.provenance.history import Failure
from plansmith.triggers.inbox.entry import StartedRun, WriteBack
from plansmith.triggers.registries.delivery import Event
from plansmith.triton.repository.signature import sign_release

from ...support.certificates import KeyRing
from ...support.faults.packages import source_model
from ...support.report.page import Page
from ...support.triggers.inboxes import event
from .site import HOSTILE, Site, link, links

ADDRESSES = ("/", "/inbox", "/models/ranker", "/nowhere")


def test_empty_fleet_says_first_step(site: Site) -> None:
    """A fleet without models says what to do first."""
    text = site.page("/").text()
    assert "holds no spec" in text
    assert "Next: put one there (.yaml or .yml), or name another folder" in text


def test_models_stand_with_state(site: Site) -> None:
    """Every model stands with its version, its state and its last compile."""
    site.model("ranker", versions=2)
    site.model("ajar", versions=0)
    site.compiled("ranker", version=2)
    site.compiled("ajar", failed=True)
    page = site.page("/")
    text = page.text()
    assert "2 all" in text
    assert "1 stale" in text
    assert "1 fresh" in text
    assert re.search(r"ajar stale there is no version of it yet local-cpu none – failed in validate 2026-11-20", text)
    assert "ranker fresh nothing changed local-cpu version 2 2026-01-01 00:00 , fp32 hf:tiny" in text
    assert "hf:tiny (random weights) passed published" in text
    assert text.index("ajar") < text.index("ranker")  # what wants somebody's eye comes first
    assert {"/models/ajar", "/models/ranker"} < set(links(page))


def test_fleet_shown_by_state(site: Site) -> None:
    """A fleet is shown by state."""
    site.model("ranker")
    site.model("ajar", versions=0)
    stale = site.page("/?state=stale")
    assert "/models/ajar" in links(stale)
    assert "/models/ranker" not in links(stale)
    assert "No model is refused." in site.page("/?state=refused").text()
    assert "/models/ranker" in links(site.page("/?state=%3Cb%3E"))


def test_long_fleet_shown_in_parts(site: Site) -> None:
    """A long fleet is shown in parts."""
    for number in range(450):
        site.place.spec(f"model-{number:03}", source="onnx:gone.onnx")
    first = site.page("/")
    assert "450 refused" in first.text()
    assert len(first.all("tr")) == 201
    assert "1–200 201–400 401–450" in first.text()
    assert {"/?page=2", "/?page=3"} < {attributes["href"] for attributes in first.all("a")}
    last = site.page("/?state=refused&page=3")
    assert len(last.all("tr")) == 51
    assert "/models/model-449" in {attributes["href"] for attributes in last.all("a")}
    assert "There are no more models." in site.page("/?page=4").text()
    assert len(site.page("/?page=0").all("tr")) == len(site.page("/?page=x").all("tr")) == 201


def test_unreadable_spec_shown_with_remedy(site: Site) -> None:
    """A spec that cannot be read stands in the fleet with the way out."""
    site.place.write("typo.yaml", {"source": "hf:a/b", "precison": "int8"})
    text = site.page("/").text()
    assert "specs/typo.yaml refused 1 problem in the spec: unknown key" in text
    assert "Next: mend this and run it again" in text


def test_model_history_newest_first(site: Site) -> None:
    """A model has its versions and its compiles, the newest first."""
    site.model("ranker", versions=3)
    site.compiled("ranker", started="2026-11-20T13:05:00+00:00")
    site.compiled("ranker", started="2026-11-21T13:05:00+00:00", failed=True)
    site.compiled("other")
    page = site.page("/models/ranker")
    text = page.text()
    assert re.search(r"Version 3 .* served .* since 2 Version 2 .* shown .* since 1 Version 1 ", text)
    assert text.index("2026-11-21 13:05 failed in validate logits differ much") < text.index("2026-11-20 13:05 publish")
    assert "other" not in text
    assert [attributes.get("name") for attributes in page.all("select")] == ["old", "new"]


def test_registry_version_of_each_told(site: Site) -> None:
    """The page tells which version of a registry each version was made from."""
    file = site.place.spec("ranker")
    for number in (3, 4):
        registered = source_model(scheme="hf", location="/c", registered="mlflow:models:/ranker", revision=str(number))
        site.place.publish(file, content=f"of version {number}{'!' * number}", source=registered)
    assert ", fp32 mlflow:models:/ranker/4 passed" in site.page("/").text()
    text = site.page("/models/ranker").text()
    assert "Published version 2 made from mlflow:models:/ranker/4 " in text
    assert re.search(
        r"Version 2 \S+ \S+ from mlflow:models:/ranker/4 .*Version 1 \S+ \S+ from mlflow:models:/ranker/3 ", text
    )


def test_damaged_manifest_hides_source(site: Site) -> None:
    """A damaged manifest says nothing of its source."""
    (site.model("ranker") / "manifest.json").write_text("{}")
    assert "damaged manifest" in site.page("/").text()
    assert "Version 1 damaged manifest unknown unknown" in site.page("/models/ranker").text()


def test_signed_version_says_by_whom(site: Site) -> None:
    """A signed version says by whom, and that nothing was checked; an unsigned one says nothing."""
    release = site.model("ranker", versions=2)
    signature = {
        "verificationMaterial": {"publicKey": {"hint": "5c1f" * 16}},
        "dsseEnvelope": {
            "payload": b64encode(b'{"subject": [{"name": "r"}], "predicate": {"resources": []}}').decode()
        },
    }
    (release / SIGNATURE_FILE).write_text(json.dumps(signature))
    assert site.page("/models/ranker").text().count("signed by key 5c1f5c1f5c1f5c1f, not checked") == 1


def test_policy_of_the_machine_is_told(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a policy, a version says whether it is accepted, and if not, why."""
    (tmp_path / "keys").mkdir()
    ring = KeyRing(tmp_path / "keys")
    monkeypatch.setenv("PLANSMITH_SIGNATURE_POLICY", str(ring.policy_file()))
    release = site.model("ranker", versions=2)
    sign_release(site.place.repository, "ranker", 2, ring.signer("release"))
    text = site.page("/models/ranker").text()
    assert f"signed by key {ring.fingerprint('release')[:16]}, as the policy requires" in text
    assert text.count("refused by the policy: it is not signed") == 1
    (release / "spec.yaml").write_text("source: another")
    site.later()
    assert (
        "refused by the policy: spec.yaml differs: not what was signed as ranker-2"
        in site.page("/models/ranker").text()
    )


def test_withdrawn_version_says_why(site: Site) -> None:
    """A withdrawn version says why it is not shown."""
    site.model("ranker", versions=2)
    site.place.repository.withdraw("ranker", 2, "answers wrongly on Tuesdays")
    assert "not shown withdrawn: answers wrongly on Tuesdays" in site.page("/models/ranker").text()
    assert "ranker fresh nothing changed local-cpu version 1" in site.page("/").text()


def test_two_versions_are_compared(site: Site) -> None:
    site.model("ranker", versions=3)
    page = site.page(link(site.page("/models/ranker"), "old=2&new=3"))
    text = page.text()
    assert "What changed in version 3 of ranker for local-cpu since version 2." in text
    assert "-config.pbtxt of made 1" in text
    assert "+config.pbtxt of made 2" in text
    assert "The same in both: interface, " in text
    assert "Report on version 2 Report on version 3" in text
    assert len(page.all("ins")) == len(page.all("del")) == 1
    same = site.page(link(site.page("/models/ranker"), "old=2&new=3").replace("old=2", "old=3")).text()
    assert "Nothing differs." in same


def test_empty_inbox_says_delivery_address(site: Site) -> None:
    """An empty inbox says where deliveries go."""
    text = site.page("/inbox").text()
    assert "No event has arrived yet. Have registries send their deliveries to /hooks/ours at this address" in text


def test_inbox_tells_entry_outcomes(site: Site) -> None:
    """The inbox tells what became of each entry."""
    for number in range(1, 5):
        site.deliver(event(f"m{number}"))
        site.clock.go(minutes=1)
    claimed = [site.inbox.claim("w", site.clock.now, 60) for _ in range(3)]
    first, second, third = (entry for entry in claimed if entry is not None)
    runs = [StartedRun(id="0b6a1c9e-7a57", address="https://prefect.example.com/runs/1"), StartedRun(id="odd-run")]
    site.inbox.finish(first, runs)
    site.inbox.set_aside(second, "no such spec\nNext: mend it")
    site.inbox.postpone(third, "Prefect is away", site.clock.now + timedelta(minutes=5))
    page = site.page("/inbox")
    text = page.text()
    assert "4 all 2 waiting 0 in work 1 done 1 set aside" in text
    assert re.search(r"Entry 4 m4 .* waiting .*Entry 3 m3 .*waiting Prefect is away 1 attempt, again at", text)
    assert "set aside no such spec Next: mend it 1 attempt Next: plansmith triggers inbox retry 2" in text
    assert "The oldest waiting entry is 2 min old." in text
    assert "https://prefect.example.com/runs/1" in links(page)
    assert "odd-run" in text
    assert "m1" not in site.page("/inbox?state=set-aside").text()
    assert "1 entry of the inbox is set aside" in site.page("/").text()
    assert "no rule matches it" not in text
    last = site.inbox.claim("w", site.clock.now, 60)
    assert last is not None
    site.inbox.finish(last, [])
    site.deliver(event("m5"))
    site.clock.go(minutes=1)
    built = site.inbox.claim("w", site.clock.now, 60)
    assert built is not None
    site.inbox.finish(built, [StartedRun(id="no-run-of-prefect", address="/elsewhere/repository version 3")])
    own = site.page("/inbox").text()
    assert re.search(r"Entry 5 m5 .* published .*/elsewhere/repository version 3", own)
    assert "no-run-of-prefect"[:8] not in own
    assert re.search(r"Entry 4 m4 .* unwanted no rule matches it", site.page("/inbox").text())


def marks(page: Page) -> list[str]:
    """What stands for states in the tables of a page."""
    return [attributes["class"] for attributes in page.all("svg")]


def test_entry_shows_write_back(site: Site) -> None:
    """An entry shows what was written back to the registry."""
    site.deliver(event("m"))
    entry = site.inbox.claim("w", site.clock.now, 60)
    assert entry is not None
    site.inbox.finish(entry, [StartedRun(id="run-1")])
    page = site.page("/inbox")
    assert "version 1, alias champion started 2026" in page.text()
    assert "mark good" not in marks(page)

    def after(end: Callable[[WriteBack], object]) -> tuple[str, str]:
        """The text on the write-back, and the icon beside it."""
        site.inbox.write_backs.again(1)
        write_back = site.inbox.write_backs.claim("t", site.clock.now, 60)
        assert write_back is not None
        end(write_back)
        page = site.page("/inbox")
        match = re.search(r"started (the registry .*?)20\d\d-[\d -]+:\d\d mlflow", page.text())
        assert match is not None, page.text()
        return match[1].strip(), marks(page)[-1]

    write_backs, now = site.inbox.write_backs, site.clock.now
    for verdict, mark in {"published": "good", "refused": "bad", "failed": "bad", "cancelled": "quiet"}.items():
        text = after(lambda write_back, verdict=verdict: write_backs.finish(write_back, verdict))  # type: ignore[misc]
        assert text == (f"the registry was told: {verdict} (2026-11-20 12:00)", f"mark {mark}")
    text = after(lambda write_back: write_backs.postpone(write_back, "its runs go on", now, failed=False))
    assert text == ("the registry is not told yet: its runs go on", "mark quiet")
    assert after(lambda _: None) == ("the registry is being told", "mark busy")
    site.clock.go(minutes=2)
    text = after(lambda write_back: write_backs.set_aside(write_back, HOSTILE))
    expected = f"the registry was not told: {HOSTILE} (1 attempt) Next: plansmith triggers inbox write-back 1"
    assert text == (expected, "mark bad")
    assert (
        "1 result could not be written back to the registry: plansmith triggers inbox list --not-written-back"
        in site.page("/inbox").text()
    )


def test_non_web_address_becomes_no_link(site: Site) -> None:
    """An address that is no link of the web becomes no link."""
    site.deliver(event("m"))
    entry = site.inbox.claim("w", site.clock.now, 60)
    assert entry is not None
    addresses = ("javascript:alert(1)", "data:text/html,x", "//elsewhere.example.com", "http://[", "http://")
    site.inbox.finish(entry, [StartedRun(id=f"run{n}", address=url) for n, url in enumerate(addresses)])
    page = site.page("/inbox")
    assert all(link.startswith(("/", "#")) for link in links(page))
    assert "run4" in page.text()


def test_whatever_names_hold_is_text(site: Site) -> None:
    site.deliver(Event(registry="ours", model=HOSTILE, version=HOSTILE, change="alias", value=HOSTILE, source=HOSTILE))
    entry = site.inbox.claim("w", site.clock.now, 60)
    assert entry is not None
    site.inbox.set_aside(entry, HOSTILE)
    name = HOSTILE.replace("/", "")
    site.model("ranker", versions=2)
    releases = site.place.repository.store / "releases"
    (releases / "ranker").rename(releases / name)
    failure = Failure(step=HOSTILE, error="E", message=HOSTILE, exit_code=3)
    site.compiled(name, source=HOSTILE, revision=HOSTILE, failure=failure, started=HOSTILE, target="local-cpu")
    model = link(site.page("/"), "%3Cscript")
    for address in ("/inbox", "/", model, f"/{HOSTILE}", f"/models/{name}x", link(site.page(model), "/diff")):
        text = site.ask(address).body.decode()
        assert not re.search(r"<script|onerror=", text), address
        assert "alert(" in text, address
    assert name in site.page(model).text()


@pytest.mark.parametrize("address", ADDRESSES)
def test_page_runs_nothing_uncached(address: str, site: Site) -> None:
    """A page may run nothing and be kept by nobody."""
    site.model("ranker")
    headers = site.ask(address).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["style-src"] == policy["form-action"] == "'self'"
    assert not [name for name in policy if name.startswith(("script", "connect"))]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("address", ADDRESSES)
def test_page_parts_are_labelled(address: str, site: Site) -> None:
    """A page says what its parts are."""
    site.model("ranker", versions=3)
    site.compiled("ranker")
    site.deliver(event("m"))
    page = site.page(address, 404 if address == "/nowhere" else 200)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("main")) == len(page.all("h1")) == len(page.all("header")) == len(page.all("footer")) == 1
    assert page.all("a")[0] == {"class": "skip", "href": "#content"}
    assert page.all("main")[0]["id"] == "content"
    assert all(attributes.get("aria-label") for attributes in page.all("nav"))
    heads = page.all("th")
    assert all(attributes["scope"] in {"col", "row"} for attributes in heads)
    assert len(page.all("caption")) == len(page.all("table"))
    assert not page.all("script")
    assert not [
        attributes
        for _, attributes in page.elements
        if "style" in attributes or any(name.startswith("on") for name in attributes)
    ]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["for"] for attributes in page.all("label")} <= set(ids)
    assert all(attributes.get("aria-hidden") == "true" for attributes in page.all("svg"))
    refresh = [attributes for attributes in page.all("meta") if "http-equiv" in attributes]
    assert not refresh


def test_style_is_one_cacheable_file(site: Site) -> None:
    """The style is one file that may be kept."""
    (address,) = (attributes["href"] for attributes in site.page("/").all("link") if attributes["rel"] == "stylesheet")
    answer = site.ask(address)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert b"prefers-color-scheme: dark" in answer.body
    assert b".skip:focus" in answer.body


def test_pages_are_read_only(site: Site) -> None:
    """Pages can be read, and nothing else."""
    for method in ("POST", "PUT", "DELETE"):
        assert site.ask("/", method).status == site.ask("/inbox", method).status == 405
    assert site.ask("/", "HEAD").status == 200


def test_hooks_answer_beside_pages(site: Site) -> None:
    """Hooks answer as they do without pages."""
    assert site.ask("/hooks/ours", "GET").status == 405
    for method in ("GET", "POST"):
        answer = site.ask("/hooks/theirs/", method)
        assert (answer.status, answer.body) == (404, b"Not Found")
    assert site.ask("/hooks/theirs", "POST").body == b""
