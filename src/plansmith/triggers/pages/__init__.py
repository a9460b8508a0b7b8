"""Status page: the fleet, its models and the inbox; read-only, rendered on the server, without scripts.

What takes long (the state of a fleet, the versions of a model) is queried in a process of its own, at a low priority,
and cached for a while with its age: deliveries do not wait for pages.
"""
