"""Start servers, and end them whatever happens."""
