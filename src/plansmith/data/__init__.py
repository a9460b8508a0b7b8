"""Real inputs and labels: read, drawn, split; and the inputs that plansmith brings itself, where nobody gives any."""
