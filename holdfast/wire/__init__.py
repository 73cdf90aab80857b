"""What processes say to each other: plain types, and their way to messages and back."""
