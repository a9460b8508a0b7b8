"""Write-back SQL: pending reports to registries, a row per entry that became runs of a reporting registry.

As entries, those of one lane are worked off one at a time, so that an older one never overtakes a younger one that has
begun. `settled` is when one was told or set aside.
"""

from __future__ import annotations

_LONGEST_AHEAD_SECONDS = 3600
"""No lease and no pause is longer: a time further ahead was noted before the clock was set back."""


def past(column: str) -> str:
    """Return the condition that the time in a column has come, by a clock that may have been set back since."""
    return f"({column} <= :now OR {column} > :now + {_LONGEST_AHEAD_SECONDS})"


TABLES = (
    """
    CREATE TABLE plansmith_write_backs (
        entry BIGINT NOT NULL PRIMARY KEY,
        lane TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('waiting', 'in-work', 'written', 'set-aside')),
        attempts INTEGER NOT NULL,
        next_try DOUBLE PRECISION NOT NULL,
        worker TEXT NOT NULL,
        lease TEXT NOT NULL,
        lease_until DOUBLE PRECISION,
        reason TEXT NOT NULL,
        verdict TEXT NOT NULL,
        settled DOUBLE PRECISION
    )
    """,
    "CREATE INDEX plansmith_tellings_open ON plansmith_write_backs (next_try, entry) WHERE settled IS NULL",
    "CREATE INDEX plansmith_tellings_by_lane ON plansmith_write_backs (lane, entry)",
    "CREATE INDEX plansmith_entries_by_content ON plansmith_entries (content_key, id)",
)

_RELEASE = "worker = '', lease = '', lease_until = NULL"
_ANEW = f"state = 'waiting', attempts = 0, next_try = :now, reason = '', verdict = '', settled = NULL, {_RELEASE}"

WANT = f"""
    INSERT INTO plansmith_write_backs (
        entry, lane, state, attempts, next_try, worker, lease, reason, verdict
    )
    SELECT id, lane, 'waiting', 0, :now, '', '', '', '' FROM plansmith_entries
    WHERE id = :id AND state = 'done' AND runs <> '[]'
    ON CONFLICT (entry) DO UPDATE SET {_ANEW}
"""  # noqa: S608 - of constants
FORGET = "DELETE FROM plansmith_write_backs WHERE entry = :id"
FORGET_WITHOUT_ENTRY = """
    DELETE FROM plansmith_write_backs
    WHERE NOT EXISTS (SELECT 1 FROM plansmith_entries e WHERE e.id = plansmith_write_backs.entry)
"""

_DUE = f"(t.state = 'waiting' AND {past('t.next_try')} OR t.state = 'in-work' AND {past('t.lease_until')})"
_NOBODY_AT_IT = f"""
    NOT EXISTS (
        SELECT 1 FROM plansmith_write_backs w
        WHERE w.lane = t.lane AND w.state = 'in-work' AND NOT {past("w.lease_until")}
    )
"""  # noqa: S608 - of constants
FIND = f"""
    SELECT t.entry FROM plansmith_write_backs t JOIN plansmith_lanes l ON l.lane = t.lane
    WHERE t.settled IS NULL AND {_DUE} AND {_NOBODY_AT_IT}
    ORDER BY t.next_try, t.entry LIMIT 1
"""  # noqa: S608 - of constants
CLAIM = f"""
    UPDATE plansmith_write_backs AS t
    SET state = 'in-work', worker = :worker, lease = :lease, lease_until = :lease_until
    WHERE t.entry = :entry AND t.settled IS NULL AND {_DUE} AND {_NOBODY_AT_IT}
    RETURNING *
"""  # noqa: S608 - of constants

_OWN = "entry = :id AND state = 'in-work' AND lease = :lease"
RENEW = f"UPDATE plansmith_write_backs SET lease_until = :lease_until WHERE {_OWN}"  # noqa: S608 - of constants
TOLD = f"""
    UPDATE plansmith_write_backs
    SET state = 'written', settled = :now, verdict = :verdict, reason = '', {_RELEASE} WHERE {_OWN}
"""  # noqa: S608 - of constants
# Waiting for the end of a run is no failure: `failures` is 0 then.
POSTPONE = f"""
    UPDATE plansmith_write_backs SET state = 'waiting', attempts = attempts + :failures, next_try = :next_try,
    reason = :reason, {_RELEASE} WHERE {_OWN}
"""  # noqa: S608 - of constants
SET_ASIDE = f"""
    UPDATE plansmith_write_backs SET state = 'set-aside', settled = :now, attempts = attempts + 1, reason = :reason,
    {_RELEASE} WHERE {_OWN}
"""  # noqa: S608 - of constants
UNWANTED = f"DELETE FROM plansmith_write_backs WHERE {_OWN}"  # noqa: S608 - of constants

NOT_WRITTEN = "SELECT entry FROM plansmith_write_backs WHERE state = 'set-aside'"
COUNT_STATES = "SELECT state, COUNT(*) AS number FROM plansmith_write_backs GROUP BY state"
READ = "SELECT * FROM plansmith_write_backs WHERE entry = :id"
OF_VERSION = """
    SELECT e.id, e.runs, t.* FROM plansmith_entries e LEFT JOIN plansmith_write_backs t ON t.entry = e.id
    WHERE e.content_key = :content_key AND (t.entry IS NOT NULL OR e.settled IS NULL) ORDER BY e.id
"""
