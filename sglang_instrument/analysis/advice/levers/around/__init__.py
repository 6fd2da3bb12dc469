"""Levers on what is around the engine: tools, rewards, the loop."""
