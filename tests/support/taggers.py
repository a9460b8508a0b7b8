"""The shipped models that read texts: small BERTs without weights, with a tokenizer trained on real sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .real_sentences import real_paragraphs

ENTITIES = ("PER", "ORG", "LOC", "MISC")
TAGS = ("O", *(f"{begins}-{entity}" for entity in ENTITIES for begins in "BI"))
"""Those of CoNLL-2003."""

PAD, UNKNOWN, FIRST, LAST, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"


def word_piece(size: int, *, longest: int) -> Any:
    """A tokenizer like that of BERT with upper and lower case, as transformers reads it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[PAD, UNKNOWN, FIRST, LAST, MASK], show_progress=False
    )
    tokenizer.train_from_iterator(real_paragraphs(), trainer)
    marks = {mark: tokenizer.token_to_id(mark) for mark in (FIRST, LAST)}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}", pair=f"{FIRST} $A {LAST} $B:1 {LAST}:1", special_tokens=[*marks.items()]
    )
    kind: Any = PreTrainedTokenizerFast
    return kind(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=FIRST,
        sep_token=LAST,
        mask_token=MASK,
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


LANGUAGES = ("english", "german", "french")


def write_tagger(folder: Path) -> None:
    """The model that finds entities."""
    # With a smaller range, neighbours all but share one tag.
    _write(folder, "BertForTokenClassification", TAGS, words=4096, hidden_size=256, layers=4, initializer_range=0.05)


def write_language_detector(folder: Path) -> None:
    """The model that tells languages."""
    sizes = {"words": 1024, "hidden_size": 64, "layers": 2}
    _write(folder, "BertForSequenceClassification", LANGUAGES, **sizes, initializer_range=0.2)


def _write(
    folder: Path, head: str, labels: Sequence[str], *, words: int, hidden_size: int, layers: int, **more: Any
) -> None:
    """Configuration and tokenizer as the shipped specs have them; the weights are drawn when they are compiled."""
    from transformers import BertConfig

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = word_piece(words, longest=512)
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    kind: Any = BertConfig
    kind(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=512,
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
        pad_token_id=tokenizer.pad_token_id,
        architectures=[head],
        **more,
    ).save_pretrained(folder)


if __name__ == "__main__":
    MODELS = Path(__file__).parents[2] / "configs" / "models"
    write_tagger(MODELS / "bert-entities-random")
    write_language_detector(MODELS / "bert-languages-random")
