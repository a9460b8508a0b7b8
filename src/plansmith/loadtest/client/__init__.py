"""What runs in a client process of a load test, which gevent has patched."""
