"""Client process of a load test, in which gevent has patched the standard library."""
