"""What this machine can do: checks that become findings, from raw facts that children and the kernel tell."""
