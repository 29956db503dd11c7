"""A recurrent network that guesses the next character; each client is a role of Shakespeare's plays."""
