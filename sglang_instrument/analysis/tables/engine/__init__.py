"""Declare tables of the engines: their servers, their requests, their calls."""
