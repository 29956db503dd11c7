"""A frozen backbone and a private head: only the head's arrays are sent, clipped and counted."""
