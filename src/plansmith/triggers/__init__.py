"""Hears of models and has them built: deliveries are kept until each has become a run, whatever ends in between."""
