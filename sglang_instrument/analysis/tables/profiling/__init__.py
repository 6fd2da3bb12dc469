"""Declare tables of the engines' own profilers: how they were switched, and what their traces show."""
