"""Registry-triggered builds as flow runs."""
