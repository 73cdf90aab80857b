"""What people are told of each step, and how well the hardware is used."""
