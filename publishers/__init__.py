"""Server side that hands deliveries to routes."""
