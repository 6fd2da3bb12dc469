"""Read what SGLang's server prints: when, by which server and rank, what each line says, what it covers."""
