"""Models and graphs with known defects, and what the gate says of them."""
