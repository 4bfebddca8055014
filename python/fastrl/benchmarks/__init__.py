"""What fastrl bench measures."""
