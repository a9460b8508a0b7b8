"""What was published, kept well: verified from time to time, and rid of what nobody needs."""
