"""The file of the service: models, schedules, destinations, what registries may start."""
