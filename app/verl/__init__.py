"""Runs programs written for verl on Podium's core (``podium run --verl``); loaded only with that switch."""
