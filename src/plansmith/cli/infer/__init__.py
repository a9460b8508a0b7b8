"""The command that asks a served model."""
