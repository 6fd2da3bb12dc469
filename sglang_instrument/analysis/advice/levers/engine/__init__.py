"""Levers on the engine and on what routes to it."""
