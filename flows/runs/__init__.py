"""Flow runs: submitting, following and ending them."""
