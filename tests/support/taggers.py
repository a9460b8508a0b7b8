"""The shipped model that finds entities: a small BERT without weights, with a tokenizer trained on real sentences."""

from __future__ import annotations

import json
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

    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[PAD, UNKNOWN, FIRST, LAST, MASK], show_progress=False
    )
    made.train_from_iterator(real_paragraphs(), trainer)
    marks = {mark: made.token_to_id(mark) for mark in (FIRST, LAST)}
    made.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}", pair=f"{FIRST} $A {LAST} $B:1 {LAST}:1", special_tokens=[*marks.items()]
    )
    kind: Any = PreTrainedTokenizerFast
    return kind(
        tokenizer_object=made,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=FIRST,
        sep_token=LAST,
        mask_token=MASK,
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def write_tagger(folder: Path) -> None:
    """Configuration and tokenizer as the shipped spec has them; the weights are drawn when it is compiled."""
    from transformers import BertConfig

    tokenizer = word_piece(4096, longest=512)
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    kind: Any = BertConfig
    kind(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=512,
        initializer_range=0.05,  # with less, neighbours all but share one tag
        id2label=dict(enumerate(TAGS)),
        label2id={tag: place for place, tag in enumerate(TAGS)},
        pad_token_id=tokenizer.pad_token_id,
        architectures=["BertForTokenClassification"],
    ).save_pretrained(folder)


if __name__ == "__main__":
    write_tagger(Path(__file__).parents[2] / "configs" / "models" / "bert-entities-random")
