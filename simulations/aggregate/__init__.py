"""The study of mechanisms for the secure sum: errors and accuracies at an equal budget of the whole run."""
