"""Levers on the responses: how long they may be, and how many are begun."""
