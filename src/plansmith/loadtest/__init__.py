"""Load tests: many clients of served models at once, stage by stage, on Locust."""
