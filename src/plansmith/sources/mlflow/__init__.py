"""MLflow registered models: version resolution, trusted file locations, and model flavors."""
