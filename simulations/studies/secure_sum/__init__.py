"""The study of exact errors in the secure sum."""
