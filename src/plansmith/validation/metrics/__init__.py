"""Agreement metrics, by kind of model output."""
