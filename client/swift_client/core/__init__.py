"""What a client has to know and decide, without a socket, a thread or a clock."""
