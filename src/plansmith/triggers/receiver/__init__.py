"""The receiver of deliveries: what registries send over HTTP."""
