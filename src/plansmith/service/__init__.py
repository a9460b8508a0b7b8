"""The service that hears registries: what comes in over HTTP, and where it is kept until its build has begun."""
