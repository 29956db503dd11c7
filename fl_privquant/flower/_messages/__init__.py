"""What clients and server send each other in Flower records."""
