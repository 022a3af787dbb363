"""How does a server do under more and more users? `python -m loadtest.sweep --url grpc://… --users 1,2,4,8`"""
