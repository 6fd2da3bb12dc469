"""Answer which weights engines had when: updates, the calls that they stalled, the weights of each reply."""
