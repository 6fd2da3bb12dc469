"""Answer one question a file, each as one table."""
