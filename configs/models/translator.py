"""Tells the language of each text, and translates what is not English."""

from typing import Any

import numpy as np

OUTPUTS = {"language": ("string", ["batch", 1]), "translation": ("string", ["batch", 1])}


def answer(inputs: Any, models: Any) -> dict[str, Any]:
    """Ask the language detector, and T5 about the texts that it does not take for English."""
    texts = inputs["text"]
    languages = models["main"](text=texts)["label"]
    translations = texts.copy()
    foreign = languages[:, 0] != b"english"
    if foreign.any():
        prompts = [f"translate {language.decode().title()} to English: ".encode() for language in languages[foreign, 0]]
        asked = np.array([[prompt + text] for prompt, text in zip(prompts, texts[foreign, 0], strict=True)], object)
        translations[foreign] = models["t5"](text=asked)["text"]
    return {"language": languages, "translation": translations}
