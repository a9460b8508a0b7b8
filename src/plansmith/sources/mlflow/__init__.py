"""Models that are registered in MLflow: which version is meant, where its files may come from, what they are."""
