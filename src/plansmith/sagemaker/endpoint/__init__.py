"""An endpoint as a person describes it, and what follows from that without asking AWS."""
