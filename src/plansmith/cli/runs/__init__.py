"""Commands on runs: fleets, flows, triggers, the zoo."""
