"""What is printed of each step, and how well the hardware is used."""
