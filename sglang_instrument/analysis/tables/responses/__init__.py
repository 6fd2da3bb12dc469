"""Declare tables of the responses: their lengths, their rewards, how well they are drafted."""
