"""Load tests: many concurrent clients of served models, stage by stage, on Locust."""
