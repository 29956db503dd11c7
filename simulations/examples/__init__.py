"""Two Flower apps to copy: ordinary ones, with the two lines of PrivQuant added."""
