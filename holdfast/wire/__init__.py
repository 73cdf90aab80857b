"""What processes send each other: plain types, and their conversion to messages and back."""
