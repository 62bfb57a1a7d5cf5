"""The dispatcher: stores runs, delivers them, grants claims and recovers them."""
