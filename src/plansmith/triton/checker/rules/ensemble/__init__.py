"""Rules of ensembles."""
