"""A client of models behind endpoints of Amazon SageMaker, over AWS or to a front end of Triton without it."""
