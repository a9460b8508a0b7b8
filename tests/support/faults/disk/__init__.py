"""What changes the disk: the calls, and what a power cut may leave of them."""
