"""What the tests of load tests share."""
