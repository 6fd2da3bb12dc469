"""Tell which server ran each call of the engine, how busy servers were, and what their caches held."""
