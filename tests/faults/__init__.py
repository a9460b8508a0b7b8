"""What happens to the disk when processes die, run at once, or find no room."""
