"""Commands about runs: fleets, flows, triggers, the zoo."""
