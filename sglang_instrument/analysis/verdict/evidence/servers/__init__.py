"""Look at the servers behind the workers' calls: what each did, when it stood still, what it held back."""
