"""Worker: the child process of a compile, which loads the model."""
