"""Files beside the weights that nobody's library can read are named, whatever the library says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.errors import SourceError
from plansmith.sources.huggingface.processors import read_preprocessors

DAMAGED = {
    "cut off": json.dumps({"model": {"vocab": {f"word {number}": number for number in range(200_000)}}})[:-1],
    "a list": "[]",
    "of another kind": json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "Own", "vocab": {}}}),
    "nothing that a tokenizer has": '{"a": 1}',
}


@pytest.mark.slow
@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_unreadable_tokenizer_named_with_reason(text: str, tmp_path: Path) -> None:
    """A tokenizer that cannot be read is named with the reason."""
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(SourceError, match=r"the tokenizer in .* cannot be read: .") as refused:
        read_preprocessors(tmp_path, trust_remote_code=False)
    assert "save_pretrained" in refused.value.remedy
