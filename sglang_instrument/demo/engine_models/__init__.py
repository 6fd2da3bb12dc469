"""The only models that the demo's engine imports: without a package, SGLang imports 240 files of models."""
