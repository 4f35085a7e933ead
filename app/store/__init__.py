"""The record of a run in one SQLite file: the only room that speaks SQL."""
