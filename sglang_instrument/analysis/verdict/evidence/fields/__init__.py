"""Look at fields of spans that the vocabulary does not know: the user's own."""
