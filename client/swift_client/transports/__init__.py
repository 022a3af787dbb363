"""How bytes get to a server and back."""
